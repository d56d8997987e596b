//! The event stream of a turn, opened again whenever it ends.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use crate::client::{Client, ClientError, Events};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A stream that ends within this time is not opened again at once.
const SOON: Duration = Duration::from_secs(10);
/// The first use of a directory starts an instance for it, which takes seconds on a busy machine.
const CONNECTED_LIMIT: Duration = Duration::from_secs(30);
/// What a long gap misses beyond these is read at the turn's end.
const MESSAGES_MAX: usize = 50;
/// More subagents than this are not asked for.
const SUBAGENTS_MAX: usize = 64;

/// What comes out of a feed.
pub(super) enum FeedItem {
    Event(Value),
    /// From here on events are missing, until [`FeedItem::Reopened`].
    Gap,
    /// Events come again; what the server has is as of after that.
    Reopened(Snapshot),
}

/// What may have been missed.
#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) messages: Vec<Value>,
    pub(super) subagents: Vec<String>,
    pub(super) permissions: Vec<Value>,
    pub(super) questions: Vec<Value>,
}

enum Stream<'a> {
    Open(Events),
    Opening(BoxFuture<'a, (Events, Snapshot)>),
}

pub(super) struct Feed<'a> {
    client: &'a Client,
    session: &'a str,
    directory: Option<&'a str>,
    stream: Stream<'a>,
    opened: Instant,
    /// Before the stream is opened again. It grows while streams end soon after they were opened.
    pause: Duration,
}

/// Opens the event stream, and returns once the server sends events on it.
pub(super) async fn open(client: &Client, directory: Option<&str>) -> Result<Events, ClientError> {
    let connected = async {
        let mut events = client.events(directory).await?;
        match events.next().await {
            Some(event) if event["type"] == "server.connected" => Ok(events),
            Some(_) => Err(ClientError::Format),
            None => Err(ClientError::Closed),
        }
    };
    match tokio::time::timeout(CONNECTED_LIMIT, connected).await {
        Ok(connected) => connected,
        Err(_) => Err(ClientError::Deadline(CONNECTED_LIMIT)),
    }
}

impl<'a> Feed<'a> {
    pub(super) fn new(
        client: &'a Client,
        session: &'a str,
        directory: Option<&'a str>,
        events: Events,
    ) -> Self {
        Feed {
            client,
            session,
            directory,
            stream: Stream::Open(events),
            opened: Instant::now(),
            pause: Duration::ZERO,
        }
    }

    /// What comes next. Cancel-safe.
    pub(super) async fn next(&mut self) -> FeedItem {
        let reopened = match &mut self.stream {
            Stream::Open(events) => match events.next().await {
                Some(event) => return FeedItem::Event(event),
                None => None,
            },
            Stream::Opening(opening) => Some(opening.await),
        };
        match reopened {
            Some((events, snapshot)) => {
                self.stream = Stream::Open(events);
                self.opened = Instant::now();
                FeedItem::Reopened(snapshot)
            }
            None => {
                self.pause = match self.opened.elapsed() < SOON {
                    true => (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
                    false => Duration::ZERO,
                };
                let opening = reopen(self.client, self.session, self.directory, self.pause);
                self.stream = Stream::Opening(Box::pin(opening));
                FeedItem::Gap
            }
        }
    }
}

async fn reopen(
    client: &Client,
    session: &str,
    directory: Option<&str>,
    mut pause: Duration,
) -> (Events, Snapshot) {
    loop {
        tokio::time::sleep(pause).await;
        if let Ok(events) = open(client, directory).await
            && let Ok(snapshot) = snapshot(client, session, directory).await
        {
            return (events, snapshot);
        }
        pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

async fn snapshot(
    client: &Client,
    session: &str,
    directory: Option<&str>,
) -> Result<Snapshot, ClientError> {
    Ok(Snapshot {
        messages: client.latest_messages(session, MESSAGES_MAX).await?,
        subagents: subagents(client, session).await,
        permissions: or_none(client.permissions(directory).await)?,
        questions: or_none(client.questions(directory).await)?,
    })
}

/// Nothing, of a version without such requests.
fn or_none(answer: Result<Vec<Value>, ClientError>) -> Result<Vec<Value>, ClientError> {
    match answer {
        Err(ClientError::Status { .. }) => Ok(Vec::new()),
        answer => answer,
    }
}

/// Sessions of subagents, and of theirs.
async fn subagents(client: &Client, session: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = VecDeque::from([session.to_owned()]);
    while let Some(parent) = open.pop_front() {
        for child in client.children(&parent).await.unwrap_or_default() {
            if found.len() < SUBAGENTS_MAX && !found.contains(&child) {
                found.push(child.clone());
                open.push_back(child);
            }
        }
    }
    found
}
