//! The program `ringmq`; everything is in the library, so that the bench can start itself.

fn main() -> std::process::ExitCode {
    ringmq::commands::main()
}
