//! Kernel work by cause: what QEMU's plugin needs to know of a kernel (`--kernel-work`).
//!
//! | module | contents |
//! |---|---|
//! | [`addresses`] | the addresses of a kernel's functions |
//! | [`functions`] | the counts by function, as folded stacks |
//! | [`roles`] | what they mean |
//! | [`show`] | the counts as a table and as JSON |

mod addresses;
pub mod functions;
mod roles;
pub mod show;

use super::kernel::Kernel;
use super::plugin::Plugin;
use anyhow::anyhow;

/// Returns the plugin for this kernel.
///
/// # Errors
/// This machine's QEMU can't load the plugin, or the kernel lacks symbols.
pub fn plugin(kernel: &Kernel) -> anyhow::Result<Plugin> {
    let symbols = addresses::of(kernel)?;
    let image = kernel.image.display();
    let roles = roles::of(kernel.kind, kernel.arch, &symbols).map_err(|missing| anyhow!("{image}: {missing}"))?;
    Plugin::new(kernel.arch, roles)
}
