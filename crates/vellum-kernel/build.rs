//! Hands the linker script to the linker, so that a plain `cargo build` needs no flags from outside.

fn main() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let script = format!("{}/link-{}.ld", variable("CARGO_MANIFEST_DIR"), variable("CARGO_CFG_TARGET_ARCH"));
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    // The target links position-independent executables; the kernel has one address, and no one to relocate it.
    println!("cargo::rustc-link-arg-bins=--no-pie");
}
