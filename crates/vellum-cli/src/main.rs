//! The program `vellum`. All of it is in the library, so that fuzz targets reach its parsers.

fn main() -> anyhow::Result<std::process::ExitCode> {
    vellum_cli::main()
}
