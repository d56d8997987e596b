//! The driver of an agent that runs as a server: the instruction is the first turn of one session, and messages are
//! further ones, one after the other. Between them the agent is idle, until somebody finalizes or aborts the rollout or
//! its time is up.
//!
//! A server that dies is not started again: its rollout is over.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_agents::ServeLaunch;
use rollcage_live::client::{NewSession, Prompt};
use rollcage_live::place::Company;
use rollcage_live::server::SILENCE_MAX;
use rollcage_live::{
    Client, Credentials, LiveServer, SandboxPlace, ServerOptions, TurnControls, TurnRequest,
    drive_turn,
};
use rollcage_model::event::What;
use rollcage_model::live::{Answer, ErrorCode, PermissionPolicy, Reply, ReplyKind};
use rollcage_model::text::chain;
use rollcage_model::transcript::{AgentEnd, events_of_messages};
use rollcage_sandbox::Sandbox;
use rollcage_sandbox::guest::WORKDIR;

use super::driver::{Account, Driver, Streams};
use crate::controls::{Controls, LiveConversation};
use crate::environment;
use crate::feed::Feed;
use crate::judge::{Ending, StopReason, turn_failure};
use crate::store::{MESSAGES_FILE, STDERR_FILE, private_file};

mod replies;

use replies::ReplyFeed;

/// How long a server may take to become healthy. It takes a second on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// How long an aborted turn may take to end, and the server to answer a last request.
const GRACE: Duration = Duration::from_secs(2);
/// The rollout's own time limit ends a turn, so this is only longer than any.
const TURN_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Nobody is there to answer: what the configuration does not allow is refused, as by the agent's command.
const PERMISSIONS: PermissionPolicy = PermissionPolicy::Reject;
/// Given, it spares the model call that makes one up.
const TITLE: &str = "task";

/// An agent's server in a sandbox, started or not.
pub(crate) struct ServedAgent {
    pub(crate) server: Arc<LiveServer>,
    log: PathBuf,
}

impl ServedAgent {
    /// A server that is started by the driver. `variables` are the task's; the agent's own override them.
    pub(crate) fn new(
        sandbox: &Arc<Box<dyn Sandbox>>,
        launch: &ServeLaunch,
        variables: &BTreeMap<String, String>,
        log: PathBuf,
    ) -> std::io::Result<Self> {
        let mut env = environment::of_agent(variables);
        env.extend(launch.env.clone());
        let options = ServerOptions {
            argv: launch.argv.clone(),
            env,
            cwd: String::new(),
            port: 0,
            credentials: Credentials::generate()?,
            deadline: START_LIMIT,
            poll: POLL,
            silence_max: SILENCE_MAX,
            log: log.clone(),
        };
        let place = SandboxPlace {
            sandbox: Arc::clone(sandbox),
            // The task's services outlive it, and the rollout itself kills what is left in the end.
            company: Company::Services,
        };
        Ok(ServedAgent {
            server: LiveServer::new(Arc::new(place), options),
            log,
        })
    }

    /// What it has printed and will print belongs to this record.
    pub(crate) fn log_to(&self, record: &Path) {
        self.server.move_log(record.join(STDERR_FILE));
    }

    /// For a server that no rollout used.
    pub(crate) fn remove_log(&self) {
        let _ = std::fs::remove_file(&self.log);
    }

    /// Has it read its work directory and configuration anew. One that cannot is stopped; the driver starts it again.
    pub(crate) async fn read_anew(&self) {
        let Some(client) = self.server.client() else {
            return;
        };
        let disposed = client.dispose_instance(WORKDIR);
        let disposed = tokio::time::timeout(GRACE, disposed).await;
        if !matches!(disposed, Ok(Ok(()))) {
            self.server.stop().await;
        }
    }
}

/// What a served agent is told, and where its doings go.
pub(crate) struct ServeContext<'a> {
    pub(crate) instruction: String,
    pub(crate) variant: Option<String>,
    pub(crate) model: Option<(String, String)>,
    pub(crate) controls: &'a Controls,
    pub(crate) feed: &'a Arc<Feed>,
    /// The directory of the record.
    pub(crate) record: &'a Path,
}

type Starting = Pin<Box<dyn Future<Output = Result<LiveConversation, String>> + Send>>;

struct RunningTurn {
    end: Pin<Box<dyn Future<Output = Reply> + Send>>,
    abort: CancellationToken,
    /// Kept open: a closed channel would mean that nobody answers any longer.
    _answers: mpsc::Sender<(String, Answer)>,
}

/// What the agent does.
enum Work {
    Starting(Starting),
    Turn(RunningTurn),
    Nothing,
}

/// A server, before and after its start.
pub(crate) struct Serve<'a> {
    cx: ServeContext<'a>,
    agent: ServedAgent,
    /// Written before the start.
    files: Vec<(String, String)>,
    messages: mpsc::Receiver<String>,
    conversation: Option<LiveConversation>,
    work: Work,
    turns: u64,
    replies: Arc<ReplyFeed>,
    /// How the last turn ended; `None` for well.
    failure: Option<(ErrorCode, String)>,
    account: Account,
}

impl<'a> Serve<'a> {
    /// Of a rollout whose controls have a mailbox, which can be taken once.
    pub(crate) fn new(
        cx: ServeContext<'a>,
        agent: ServedAgent,
        files: Vec<(String, String)>,
    ) -> Self {
        let closed = || mpsc::channel(1).1;
        Serve {
            messages: cx.controls.take_messages().unwrap_or_else(closed),
            work: Work::Starting(starting(&agent)),
            replies: Arc::new(ReplyFeed::new(Arc::clone(cx.feed))),
            cx,
            agent,
            files,
            conversation: None,
            turns: 0,
            failure: None,
            account: Account::default(),
        }
    }

    fn begin(&mut self, conversation: LiveConversation) {
        self.cx.feed.publish(What::Session {
            serve_session_id: conversation.session.clone(),
        });
        let shared = Some(conversation.clone());
        self.cx.controls.set_conversation(shared);
        self.conversation = Some(conversation);
        let instruction = self.cx.instruction.clone();
        self.say(instruction);
    }

    /// Begins a turn.
    fn say(&mut self, text: String) {
        let Some(LiveConversation { client, session }) = self.conversation.clone() else {
            return;
        };
        self.turns += 1;
        self.failure = None;
        self.cx.controls.set_busy();
        self.cx
            .feed
            .publish(What::TurnStarted { number: self.turns });
        let rollout = self.cx.feed.rollout().to_string();
        let request = TurnRequest {
            prompt: Prompt {
                text,
                variant: self.cx.variant.clone(),
                model: self.cx.model.clone(),
                ..Prompt::default()
            },
            directory: None,
            session: Some(session),
            title: TITLE.to_owned(),
            turn_id: format!("{rollout}-{}", self.turns),
            trace_id: rollout,
            limit: TURN_LIMIT,
            permissions: PERMISSIONS,
            answer_limit: GRACE,
        };
        let (answers, receiver) = mpsc::channel(1);
        let abort = CancellationToken::new();
        let controls = TurnControls {
            abort: abort.clone(),
            answers: receiver,
        };
        let replies = Arc::clone(&self.replies);
        let end = async move {
            let mut sink = |reply: Reply| replies.push(reply);
            drive_turn(&client, request, controls, &mut sink).await
        };
        self.work = Work::Turn(RunningTurn {
            end: Box::pin(end),
            abort,
            _answers: answers,
        });
    }

    fn note_end(&mut self, reply: Reply) {
        self.replies.flush();
        self.work = Work::Nothing;
        self.failure = match reply.kind {
            ReplyKind::Error { code, message, .. } => Some((code, message)),
            _ => None,
        };
    }

    /// The server is gone, or never came.
    fn crash(&mut self, how: String) -> StopReason {
        self.replies.flush();
        self.work = Work::Nothing;
        let known = self.failure.take();
        let crashed = known.filter(|(code, _)| *code == ErrorCode::Crashed);
        self.failure = Some(crashed.unwrap_or((ErrorCode::Crashed, how)));
        self.served()
    }

    fn served(&self) -> StopReason {
        StopReason::Served(self.failure.as_ref().map(|(code, _)| *code))
    }

    /// After a turn: the next message, or nothing to do.
    async fn idle(&mut self) -> Option<StopReason> {
        if let Ok(text) = self.messages.try_recv() {
            self.say(text);
            return None;
        }
        let controls = self.cx.controls;
        if !controls.is_idle() && !controls.is_grade_requested() {
            let error = self.failure.as_ref();
            self.cx.feed.publish(What::Idle {
                error: error.map(|(code, message)| turn_failure(*code, message)),
            });
            controls.set_idle();
        }
        tokio::select! {
            biased;
            Some(text) = self.messages.recv() => {
                self.say(text);
                None
            }
            () = controls.grade_requested() => Some(self.served()),
            () = controls.closing() => Some(self.served()),
            how = self.agent.server.ended() => Some(self.crash(how)),
        }
    }

    /// Ends the turn in progress.
    async fn abort(&mut self) {
        if let Work::Turn(turn) = &mut self.work {
            turn.abort.cancel();
            let ended = tokio::time::timeout(GRACE, &mut turn.end).await;
            if let Ok(reply) = ended {
                self.note_end(reply);
            }
        }
        self.work = Work::Nothing;
    }

    /// Keeps the whole conversation, as long as there is somebody to ask for it.
    async fn keep_messages(&mut self) {
        let Some(LiveConversation { client, session }) = self.conversation.take() else {
            return;
        };
        let asked = tokio::time::timeout(GRACE, client.messages(&session)).await;
        // Without the server only what the proxy recorded is left.
        let messages = asked.ok().and_then(Result::ok).unwrap_or_default();
        write_messages(self.cx.record, &session, &messages);
        self.account.events = events_of_messages(&messages);
        self.account.session = Some(session);
    }
}

impl Drop for Serve<'_> {
    /// Nobody asks a server that is not driven any longer; its clients would hold the sandbox.
    fn drop(&mut self) {
        self.cx.controls.set_conversation(None);
    }
}

#[async_trait]
impl Driver for Serve<'_> {
    async fn start(&mut self, sandbox: &dyn Sandbox) -> Result<Streams, Ending> {
        for (path, text) in std::mem::take(&mut self.files) {
            let written = sandbox.write_file(&path, 0o600, text.into_bytes()).await;
            written.map_err(Ending::from_setup)?;
        }
        // The server's own log takes what it prints. One that stood ready has another place for it so far.
        self.agent.log_to(self.cx.record);
        Ok(Streams::default())
    }

    async fn over(&mut self) -> Result<StopReason, Ending> {
        loop {
            match &mut self.work {
                Work::Starting(starting) => match starting.await {
                    Ok(conversation) => self.begin(conversation),
                    Err(why) => return Ok(self.crash(why)),
                },
                Work::Turn(turn) => {
                    let server = Arc::clone(&self.agent.server);
                    tokio::select! {
                        biased;
                        reply = &mut turn.end => self.note_end(reply),
                        () = self.replies.due() => self.replies.flush(),
                        how = server.ended() => {
                            // The turn sees the same end, and says more of it.
                            self.abort().await;
                            return Ok(self.crash(how));
                        }
                    }
                }
                Work::Nothing => {
                    if let Some(stop) = self.idle().await {
                        return Ok(stop);
                    }
                }
            }
        }
    }

    /// An idle agent has done its work: it is judged by its last turn.
    fn at_limit(&self, limit: StopReason) -> StopReason {
        match (&self.work, limit) {
            (Work::Nothing, StopReason::TimedOut) => self.served(),
            _ => limit,
        }
    }

    async fn stop(&mut self) {
        self.abort().await;
        self.keep_messages().await;
        self.cx.controls.set_conversation(None);
        self.messages.close();
        self.agent.server.close().await;
    }

    fn account(&mut self) -> Option<Account> {
        let mut account = std::mem::take(&mut self.account);
        account.end = match &self.failure {
            Some((_, message)) => AgentEnd::Failed(message.clone()),
            None => AgentEnd::Done,
        };
        Some(account)
    }
}

/// Starts the server and its one session.
fn starting(agent: &ServedAgent) -> Starting {
    let server = Arc::clone(&agent.server);
    Box::pin(async move {
        let started = server.ensure_running().await;
        started.map_err(|error| chain(&error))?;
        let client: Client = server.client().ok_or("the agent's server ended")?;
        let session = NewSession {
            title: TITLE.to_owned(),
            directory: None,
        };
        let session = client.create_session(&session).await;
        let session = session.map_err(|error| format!("create the session: {}", chain(&error)))?;
        Ok(LiveConversation { client, session })
    })
}

/// A failure only loses the transcript: the exchanges are what must not be lost.
fn write_messages(record: &Path, session: &str, messages: &[Value]) {
    let text = json!({"serve_session_id": session, "messages": messages}).to_string();
    let written = private_file(&record.join(MESSAGES_FILE))
        .and_then(|mut file| file.write_all(text.as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, "the agent's messages were not kept");
    }
}
