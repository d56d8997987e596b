//! The flag for how long failing model calls are retried.

use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct PatienceArguments {
    /// How many seconds a model call is made again while the endpoint cannot be reached, is busy or aborts it; this
    /// time counts neither for the agent's time nor for idle_s
    #[arg(long, default_value_t = 180.0, value_name = "SECONDS", value_parser = seconds)]
    upstream_patience: f64,
}

impl PatienceArguments {
    pub(crate) fn upstream(&self) -> Duration {
        Duration::from_secs_f64(self.upstream_patience)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be between 0 and 86400".to_owned())
    }
}
