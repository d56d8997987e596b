//! Which arguments leave a task of the server's what its operator made it, so that it keeps the private hosts that the
//! operator listed for it. What is not listed here, as an argument of the future, makes the rollout the client's.

/// They name the rollout, limit it, or say what is told of it. They change neither what runs nor what decides what runs.
const HARMLESS: [&str; 19] = [
    "task",
    "task_id",
    "n",
    "group",
    "labels",
    "sandbox",
    "template",
    "driver",
    "mode",
    "budget",
    "limits",
    "agent_timeout_s",
    "command_timeout_s",
    "thinking",
    "disable_thinking",
    "temperature",
    "sampling",
    "top_logprobs",
    "max_tokens_cap",
];

/// They say which model drives the agent. The engine tells the operator's own from a client's.
const MODEL: [&str; 8] = [
    "endpoint",
    "model",
    "model_key",
    "base_url",
    "api_key",
    "dialect",
    "vllm_url",
    "hf_token",
];

/// Whether an argument that is given leaves a task as it is. Of those that name a model this holds as far as the engine
/// agrees ([`rollcage_engine::intake::RequestOrigin`]).
pub(super) fn leaves_unchanged(name: &str) -> bool {
    HARMLESS.contains(&name) || MODEL.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;

    /// Every argument that exists, with whose it makes the rollout. One that is added is the client's.
    #[test]
    fn an_argument_makes_a_task_the_clients_unless_it_is_known_to_be_harmless() {
        let harmless = "task task_id agent_timeout_s command_timeout_s mode budget limits sandbox driver thinking \
                        disable_thinking temperature sampling max_tokens_cap top_logprobs n group labels template";
        let of_model = "endpoint base_url api_key model dialect model_key vllm_url hf_token";
        let expected: std::collections::BTreeSet<&str> = harmless
            .split_whitespace()
            .chain(of_model.split_whitespace())
            .collect();
        let found = NAMES.iter().copied().filter(|name| leaves_unchanged(name));
        assert_eq!(found.collect::<std::collections::BTreeSet<_>>(), expected);
        for name in [
            "agent",
            "instruction",
            "network",
            "reward",
            "an_argument_of_the_future",
        ] {
            assert!(!leaves_unchanged(name), "{name}");
        }
    }
}
