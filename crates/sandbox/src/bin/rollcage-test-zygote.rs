//! The smallest program that can be a zygote, and `as-agent`; tests and benches start it instead of `rollcage`.

fn main() {
    rollcage_sandbox::local::run_as_agent_if_called();
    rollcage_sandbox::local::zygote_main()
}
