//! The command `toroid-bench`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::main()
}
