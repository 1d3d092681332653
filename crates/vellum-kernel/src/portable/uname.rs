//! The names that `uname` and `/proc` report for the system.

/// The system's name. It is Linux's, as programs check it.
pub const SYSTEM: &str = "Linux";
/// The Linux release that the kernel's interface follows.
pub const RELEASE: &str = "6.18.0-vellum";
/// The kernel's own version.
pub const VERSION: &str = concat!("Vellum ", env!("CARGO_PKG_VERSION"));
/// The host name.
pub const HOST: &str = "vellum";
/// The NIS domain name.
pub const DOMAIN: &str = "(none)";
