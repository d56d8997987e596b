//! Resolves a request: the one place where defaults are applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::bundle::VersionRequest;
use rollcage_agents::{Agent, AgentError, LaunchError, ReadyAgent};
use rollcage_dialect::chat::ConstraintPolicy;
use rollcage_endpoints::check::EndpointError;
use rollcage_endpoints::choice::{EndpointChoice, EndpointRequest};
use rollcage_model::network;
use rollcage_model::record::EndpointInfo;
use rollcage_model::task::{Mode, TEST_SCRIPT, Task, TaskError, path_inside};
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::ForbiddenAddress;
use rollcage_proxy::remote::{RemoteMcpError, RemoteMcpServers};
use rollcage_proxy::secret::Secret;
use rollcage_proxy::{ModelSettings, SamplingPolicy};

use super::catalogue::Catalogue;
use super::request::{EndpointOptions, KeySource, ModelOptions, RequestOrigin, RolloutRequest};
use crate::mount::HostMount;
use crate::network::{NetworkError, PhaseRules};
use crate::upload::Upload;

/// The longest label name, label value or group name.
const NAME_CHARS_MAX: usize = 200;
const LABELS_MAX: usize = 32;
/// The most alternatives per token that inference engines return.
const TOP_LOGPROBS_MAX: u32 = 20;

/// Why a request cannot be run. Nothing was started for it.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("the variable {0} is not set")]
    KeyVariable(String),
    #[error("the API key of this request is not known to this process: give it again")]
    KeyLost,
    #[error(
        "no endpoint is given and the task has no `solution` that the scripted endpoint could play: \
         give --endpoint, or --base-url and --model, or a solution"
    )]
    NoSolution,
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The agent does not support an option of the task.
    #[error(transparent)]
    Options(#[from] LaunchError),
    #[error(transparent)]
    Mcp(#[from] RemoteMcpError),
    #[error("the headers of the task's MCP servers are not known to this process: give them again")]
    HeadersLost,
    #[error("{0}")]
    Sampling(String),
    #[error("`constrained` must be refuse, remove or keep")]
    Constrained,
    #[error("`group` must be a text of 1 to {NAME_CHARS_MAX} characters")]
    Group,
    #[error(
        "`labels` are at most {LABELS_MAX} names with a text each, and none of them longer than {NAME_CHARS_MAX} characters"
    )]
    Labels,
    #[error("`upstream_patience_s` must be a number of seconds, and not below 0")]
    Patience,
    #[error("`top_logprobs` must be between 0 and {TOP_LOGPROBS_MAX}")]
    TopLogprobs,
    #[error("only whoever runs the program can have a sandbox show directories of its machine")]
    Mounts,
    #[error(transparent)]
    ForbiddenAddress(#[from] ForbiddenAddress),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("a budget in dollars needs the price of `{model}`")]
    NoPrice { model: String },
}

/// A rollout with its agent, endpoint and settings chosen; nothing is installed or started yet.
#[derive(Clone)]
pub struct ResolvedRollout {
    pub task: Task,
    /// Files and trees by path in the sandbox; shared by all rollouts of a submission.
    pub uploads: Arc<BTreeMap<String, Upload>>,
    /// What the sandbox shows of this machine.
    pub mounts: Vec<HostMount>,
    pub agent: Arc<dyn Agent>,
    pub version: VersionRequest,
    /// Set if the agent is already installed.
    pub ready: Option<ReadyAgent>,
    pub endpoint: EndpointChoice,
    pub settings: ModelSettings,
    /// The task's MCP servers outside the sandbox.
    pub mcp: RemoteMcpServers,
    /// What the task's phases may reach.
    pub network: PhaseRules,
    /// Whether whoever asked for it may talk to its agent.
    pub takes_messages: bool,
    pub owner: Option<String>,
    pub group: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// Chooses everything that can be chosen without network access.
pub fn resolve(
    request: RolloutRequest,
    catalogue: &Catalogue,
) -> Result<ResolvedRollout, RequestError> {
    let mut servers = request.mcp_servers();
    let has_lost_headers = request.has_lost_headers();
    let RolloutRequest {
        mut task,
        uploads,
        mounts,
        agent,
        endpoint,
        options,
        origin,
        owner,
        group,
        labels,
        ..
    } = request;
    check_names(group.as_deref(), &labels)?;
    if !mounts.is_empty() && matches!(origin, RequestOrigin::Client { .. }) {
        return Err(RequestError::Mounts);
    }
    let (agent, version) = rollcage_agents::choose(catalogue.agents(), &agent)?;
    let (endpoint, is_configured) = choose_endpoint(endpoint, &origin, catalogue)?;
    let is_scripted = matches!(endpoint, EndpointChoice::Scripted);
    if agent.dialect().is_some() && is_scripted && task.solution.is_empty() {
        return Err(RequestError::NoSolution);
    }
    task.limit(&agent.limits());
    // Check the original task, because header values are checked too.
    let masked = std::mem::replace(&mut task.mcp, servers.clone());
    task.check()?;
    task.mcp = masked;
    for path in uploads.keys() {
        if path_inside(path)? == TEST_SCRIPT && task.test_script().is_some() {
            return Err(TaskError::BothTests.into());
        }
    }
    if has_lost_headers {
        return Err(RequestError::HeadersLost);
    }
    let mut mcp = RemoteMcpServers::take(&mut servers, |name| catalogue.variable(name))?;
    if let (RequestOrigin::Client { mcp: named, .. }, Some(guard)) = (&origin, &catalogue.guard) {
        mcp.guard(named, guard);
    }
    rollcage_agents::check_options(&*agent, &task)?;
    let (network, takes_messages) = network_of(&task, &origin, is_configured, catalogue)?;
    let mut resolved = ResolvedRollout {
        settings: settings_of(&options, &task, catalogue)?,
        task,
        uploads: Arc::new(uploads),
        mounts,
        agent,
        version,
        ready: None,
        endpoint,
        mcp,
        network,
        takes_messages,
        owner,
        group,
        labels,
    };
    resolved.set_price(catalogue)?;
    Ok(resolved)
}

/// What the phases may reach, and whether the client may talk to the agent. A task of the operator's keeps its network as
/// long as nobody else decides what its agent does; whoever talks to it does.
fn network_of(
    task: &Task,
    origin: &RequestOrigin,
    has_own_model: bool,
    catalogue: &Catalogue,
) -> Result<(PhaseRules, bool), NetworkError> {
    use network::Origin::{Client, Operator};
    let host = &catalogue.network;
    let may_drive = host.client_rights.may_drive;
    match origin {
        RequestOrigin::Operator => Ok((PhaseRules::resolve(&task.network, Operator, host)?, true)),
        RequestOrigin::Client { is_unchanged, .. }
            if *is_unchanged && (has_own_model || may_drive) =>
        {
            // Setup is over when a message comes.
            let mut later = task.network.clone();
            later.set(network::Phase::Setup, network::Policy::None);
            let clients = PhaseRules::resolve(&later, Client, host);
            let gains_nothing = PhaseRules::resolve(&later, Operator, host) == clients;
            let own = PhaseRules::resolve(&task.network, Operator, host)?;
            Ok((own, may_drive || gains_nothing))
        }
        RequestOrigin::Client { .. } => {
            Ok((PhaseRules::resolve(&task.network, Client, host)?, true))
        }
    }
}

/// Bounds the size of names that are stored with every result and shown in lists.
fn check_names(group: Option<&str>, labels: &BTreeMap<String, String>) -> Result<(), RequestError> {
    let is_short = |text: &str| text.chars().count() <= NAME_CHARS_MAX;
    if group.is_some_and(|group| group.is_empty() || !is_short(group)) {
        return Err(RequestError::Group);
    }
    let is_fine =
        |(name, value): (&String, &String)| !name.is_empty() && is_short(name) && is_short(value);
    match labels.len() <= LABELS_MAX && labels.iter().all(is_fine) {
        true => Ok(()),
        false => Err(RequestError::Labels),
    }
}

/// The endpoint, and whether it is as the operator configured it. Our own keys are sent to our own URLs only: a client that
/// names another URL brings its own key.
fn choose_endpoint(
    options: EndpointOptions,
    origin: &RequestOrigin,
    catalogue: &Catalogue,
) -> Result<(EndpointChoice, bool), RequestError> {
    let key = options
        .key
        .map(|key| open_key(&key, catalogue))
        .transpose()?;
    let is_client = matches!(origin, RequestOrigin::Client { .. });
    let is_elsewhere = is_client && options.base_url.is_some();
    let request = EndpointRequest {
        kind: options.kind,
        base_url: options.base_url,
        key,
        model: options.model,
        is_thinking_disabled: options.is_thinking_disabled,
        dialect: options.dialect,
        guard: catalogue.guard.clone().filter(|_| is_client),
    };
    let variable = |name: &str| {
        (!(is_elsewhere && catalogue.providers.is_key(name)))
            .then(|| catalogue.variable(name))
            .flatten()
    };
    let is_configured = request.is_configured(&catalogue.providers, variable);
    let choice = request.resolve_among(&catalogue.providers, variable)?;
    Ok((choice, is_configured))
}

fn open_key(key: &KeySource, catalogue: &Catalogue) -> Result<Secret, RequestError> {
    match key {
        KeySource::Variable(name) => {
            let value = (catalogue.keys)(name).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| RequestError::KeyVariable(name.clone()))?;
            Ok(Secret::new(value))
        }
        KeySource::Sealed(sealed) => sealed.get().cloned().ok_or(RequestError::KeyLost),
    }
}

fn settings_of(
    options: &ModelOptions,
    task: &Task,
    catalogue: &Catalogue,
) -> Result<ModelSettings, RequestError> {
    let sampling = SamplingPolicy::new(options.sampling.as_deref(), options.temperature);
    let constrained = options.constrained.as_deref().map(|name| {
        let known = ConstraintPolicy::from_name(name);
        known.ok_or(RequestError::Constrained)
    });
    if options.top_logprobs > TOP_LOGPROBS_MAX {
        return Err(RequestError::TopLogprobs);
    }
    let upstream_patience = match options.upstream_patience_s {
        None => catalogue.upstream_patience,
        Some(seconds) => {
            Duration::try_from_secs_f64(seconds).map_err(|_| RequestError::Patience)?
        }
    };
    let cap = u64::try_from(options.max_tokens_cap);
    Ok(ModelSettings {
        tokens_max: cap.ok().filter(|cap| *cap > 0),
        top_logprobs: options.top_logprobs,
        sampling: sampling.map_err(RequestError::Sampling)?,
        constrained: constrained.transpose()?,
        budget: task.budget.into(),
        is_black_box: task.mode == Mode::BlackBox,
        upstream_patience,
        ..ModelSettings::default()
    })
}

impl ResolvedRollout {
    /// For callers that install the agent and choose the endpoint themselves.
    pub fn new(task: Task, agent: Arc<dyn Agent>, ready: ReadyAgent, endpoint: Endpoint) -> Self {
        ResolvedRollout {
            task,
            uploads: Arc::default(),
            mounts: Vec::new(),
            agent,
            version: VersionRequest::Default,
            ready: Some(ready),
            endpoint: EndpointChoice::Url(endpoint),
            settings: ModelSettings::default(),
            mcp: RemoteMcpServers::default(),
            network: PhaseRules::default(),
            takes_messages: true,
            owner: None,
            group: None,
            labels: BTreeMap::new(),
        }
    }

    /// What is known of the endpoint without querying it.
    pub fn endpoint_info(&self) -> EndpointInfo {
        if self.agent.dialect().is_none() {
            return Endpoint::none().info();
        }
        match &self.endpoint {
            EndpointChoice::Url(endpoint) => endpoint.info(),
            EndpointChoice::Managed(managed) => managed.endpoint.info(),
            EndpointChoice::Scripted => EndpointInfo {
                kind: "scripted".to_owned(),
                model: rollcage_scripted::MODEL.to_owned(),
                ..EndpointInfo::default()
            },
        }
    }

    /// Refuses addresses that a client may not name, before anything is done with them.
    pub async fn check_addresses(&self) -> Result<(), ForbiddenAddress> {
        self.endpoint.check_address().await?;
        self.mcp.check_addresses().await
    }

    /// Looks up the price of the model, once that is known. The scripted model is free.
    pub(super) fn set_price(&mut self, catalogue: &Catalogue) -> Result<(), RequestError> {
        let model = match &self.endpoint {
            EndpointChoice::Scripted => return Ok(()),
            EndpointChoice::Url(endpoint) => &endpoint.model,
            EndpointChoice::Managed(managed) => &managed.endpoint.model,
        };
        if model.is_empty() || self.settings.price.is_some() {
            return Ok(());
        }
        self.settings.price = (catalogue.prices)(model);
        match (self.settings.budget.usd, &self.settings.price) {
            (Some(_), None) => Err(RequestError::NoPrice {
                model: model.clone(),
            }),
            _ => Ok(()),
        }
    }
}
