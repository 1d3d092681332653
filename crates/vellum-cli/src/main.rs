//! The program `vellum`. All its code is in the library, so that fuzz targets reach its parsers.

fn main() -> anyhow::Result<std::process::ExitCode> {
    vellum_cli::main()
}
