//! The smallest program that can be a zygote; tests and benches start it instead of `rollcage`.

fn main() {
    rollcage_sandbox::local::zygote_main()
}
