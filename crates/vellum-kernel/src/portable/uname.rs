//! The names that `uname` and `/proc` give the system.

/// The name of the system, for programs that look.
pub const SYSTEM: &str = "Linux";
/// The release whose interface the kernel has.
pub const RELEASE: &str = "6.18.0-vellum";
/// The kernel's own version.
pub const VERSION: &str = concat!("Vellum ", env!("CARGO_PKG_VERSION"));
/// The machine's name.
pub const HOST: &str = "vellum";
/// The machine's NIS domain.
pub const DOMAIN: &str = "(none)";
