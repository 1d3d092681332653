//! The roles of a kernel's addresses, from its symbols.

use super::addresses::Symbol;
use crate::run::arch::Arch;
use crate::run::kernel::Kind;
use std::collections::HashMap;
use syscalls::{aarch64, x86_64};
use vellum_count::roles::{Role, Roles};
use vellum_count::tally::{EXCEPTION, INTERRUPT, NAMELESS, PAGE_FAULT, Tally};

/// The symbols that [`of`] needs of a Linux; * at the end stands for the rest of a name.
pub fn wanted(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &[
            "entry_SYSCALL_64",
            "asm_exc_*",
            "asm_sysvec_*",
            "irq_entries_start",
            "spurious_entries_start",
            "__x64_sys_*",
            "__switch_to_asm",
            "ret_from_fork_asm",
            "cpu_startup_entry",
            "__entry_text_start",
            "__entry_text_end",
        ],
        Arch::Aarch64 => {
            &["vectors", "do_mem_abort", "__arm64_sys_*", "cpu_switch_to", "ret_from_fork", "cpu_startup_entry"]
        }
    }
}

/// The system call with which the init for Linux (`programs/init.c`) shows the program's end.
const END: &str = "getppid";

/// The names of Linux's functions that are not those of their system calls.
const OTHERWISE: [(&str, &str); 7] = [
    ("newstat", "stat"),
    ("newlstat", "lstat"),
    ("newfstat", "fstat"),
    ("newuname", "uname"),
    ("sendfile64", "sendfile"),
    ("fadvise64_64", "fadvise64"),
    ("umount", "umount2"),
];

/// The causes that the reference kernel notes beside its system calls, from number 512 on
/// (`vellum-kernel`, `arch/cause.rs`).
const NOTED: [&str; 8] = [
    "page fault",
    "other exception",
    "thread start",
    "kernel tasks",
    "idle",
    "interrupt",
    Roles::END,
    "other system call",
];

/// The kernel's symbols by name.
struct Symbols<'a>(HashMap<&'a str, &'a Symbol>);

impl Symbols<'_> {
    fn find(&self, name: &str) -> Result<&Symbol, String> {
        self.0.get(name).copied().ok_or_else(|| format!("the kernel has no symbol {name}"))
    }
}

/// Returns the roles of the addresses of a kernel with these symbols.
///
/// # Errors
/// Returns a message about the symbol that is missing.
pub fn of(kind: Kind, arch: Arch, symbols: &[Symbol]) -> Result<Roles, String> {
    let by_name = Symbols(symbols.iter().map(|symbol| (symbol.name.as_str(), symbol)).collect());
    match kind {
        Kind::Vellum => of_vellum(arch, &by_name),
        Kind::Linux => of_linux(arch, &by_name, symbols),
    }
}

fn of_vellum(arch: Arch, symbols: &Symbols) -> Result<Roles, String> {
    let fixed = Tally::default();
    let entry = |cause| Role::Entry(fixed.name(cause).into());
    let unnamed = |cause| Role::Unnamed(fixed.name(cause).into());
    let mut roles = Roles::default();
    match arch {
        Arch::X86_64 => {
            // A stub of 16 bytes for each vector: 32 exceptions, then interrupts.
            let stubs = symbols.find("trap_stubs")?.address;
            for vector in 0..48 {
                let cause = match vector {
                    14 => PAGE_FAULT,
                    0..32 => EXCEPTION,
                    _ => INTERRUPT,
                };
                add_one(&mut roles, stubs + 16 * vector, entry(cause));
            }
            add_one(&mut roles, symbols.find("system_call_entry")?.address, unnamed(NAMELESS));
        }
        Arch::Aarch64 => {
            let vectors = symbols.find("vectors")?.address;
            // From the kernel, on either stack; then from user mode.
            for from in [0x000, 0x200] {
                add_one(&mut roles, vectors + from, entry(PAGE_FAULT));
            }
            add_one(&mut roles, vectors + 0x400, unnamed(EXCEPTION));
            for from in [0x000, 0x200, 0x400] {
                add_one(&mut roles, vectors + from + 0x80, entry(INTERRUPT));
            }
        }
    }
    roles.places.push(place(symbols.find("note_cause")?, Role::Notes));
    let calls = (0..512).filter_map(|number| Some((number as u64, call(arch, number)?.to_string())));
    let noted = (512..).zip(NOTED.map(String::from));
    roles.table = Some((symbols.find("KERNEL_CAUSES")?.address, calls.chain(noted).collect()));
    Ok(roles)
}

/// Returns the name of a system call, as Linux's functions have it.
fn call(arch: Arch, number: usize) -> Option<&'static str> {
    let name = match arch {
        Arch::X86_64 => x86_64::Sysno::new(number)?.name(),
        Arch::Aarch64 => aarch64::Sysno::new(number)?.name(),
    };
    Some(if name == "fstatat" { "newfstatat" } else { name })
}

fn of_linux(arch: Arch, symbols: &Symbols, all: &[Symbol]) -> Result<Roles, String> {
    let fixed = Tally::default();
    let entry = |cause| Role::Entry(fixed.name(cause).into());
    let unnamed = |cause| Role::Unnamed(fixed.name(cause).into());
    let mut roles = Roles { init_ends_by: Some(END.into()), ..Roles::default() };
    let [calls, switch, start] = match arch {
        Arch::X86_64 => ["__x64_sys_", "__switch_to_asm", "ret_from_fork_asm"],
        Arch::Aarch64 => ["__arm64_sys_", "cpu_switch_to", "ret_from_fork"],
    };
    match arch {
        Arch::X86_64 => {
            add_one(&mut roles, symbols.find("entry_SYSCALL_64")?.address, unnamed(NAMELESS));
            symbols.find("asm_exc_page_fault")?;
            for symbol in all {
                let cause = match symbol.name.as_str() {
                    "asm_exc_page_fault" => PAGE_FAULT,
                    name if name.starts_with("asm_exc_") => EXCEPTION,
                    name if name.starts_with("asm_sysvec_") => INTERRUPT,
                    _ => continue,
                };
                add_one(&mut roles, symbol.address, entry(cause));
            }
            // Stubs of a few bytes for the devices' vectors, which jump to a common entry. Inside
            // a stub no block begins.
            for name in ["irq_entries_start", "spurious_entries_start"] {
                roles.places.extend(symbols.find(name).map(|symbol| place(symbol, entry(INTERRUPT))));
            }
            // Elsewhere such a return only makes a CPU execute its instructions anew.
            let [from, to] = ["__entry_text_start", "__entry_text_end"].map(|name| symbols.find(name));
            roles.returns.push(from?.address..to?.address);
        }
        Arch::Aarch64 => {
            let vectors = symbols.find("vectors")?.address;
            for from in (0x000..0x800).step_by(0x200) {
                add_one(&mut roles, vectors + from, unnamed(EXCEPTION));
                for kind in [0x80, 0x100] {
                    add_one(&mut roles, vectors + from + kind, entry(INTERRUPT));
                }
            }
            let name = Role::Names(fixed.name(PAGE_FAULT).into());
            add_one(&mut roles, symbols.find("do_mem_abort")?.address, name);
        }
    }
    for symbol in all {
        if let Some(function) = symbol.name.strip_prefix(calls) {
            let name = OTHERWISE.iter().find(|(other, _)| *other == function).map_or(function, |(_, name)| name);
            let name = if name == "ni_syscall" { fixed.name(NAMELESS) } else { name };
            add_one(&mut roles, symbol.address, Role::Names(name.into()));
        }
    }
    roles.places.push(place(symbols.find(switch)?, Role::Switch));
    add_one(&mut roles, symbols.find(start)?.address, Role::Start);
    add_one(&mut roles, symbols.find("cpu_startup_entry")?.address, Role::Idle);
    Ok(roles)
}

fn place(symbol: &Symbol, role: Role) -> vellum_count::roles::Place {
    vellum_count::roles::Place { range: symbol.address..symbol.address + symbol.size, role }
}

fn add_one(roles: &mut Roles, address: u64, role: Role) {
    roles.add(address..address + 1, role);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(names: &[&str]) -> Vec<Symbol> {
        let at = |nth: usize| 0xffff_ffff_8100_0000 + 0x1000 * nth as u64;
        names
            .iter()
            .enumerate()
            .map(|(nth, name)| Symbol { address: at(nth), size: 0x40, name: (*name).into() })
            .collect()
    }

    fn role_of<'a>(roles: &'a Roles, symbols: &[Symbol], name: &str) -> Option<&'a Role> {
        let address = symbols.iter().find(|symbol| symbol.name == name)?.address;
        Some(&roles.places.iter().find(|place| place.range.start == address)?.role)
    }

    #[test]
    fn linux_on_x86_is_known_by_its_entries_and_calls() {
        let symbols = symbols(&[
            "entry_SYSCALL_64",
            "asm_exc_page_fault",
            "asm_exc_divide_error",
            "asm_sysvec_reboot",
            "irq_entries_start",
            "__x64_sys_newfstat",
            "__x64_sys_mmap",
            "__switch_to_asm",
            "ret_from_fork_asm",
            "cpu_startup_entry",
            "__entry_text_start",
            "__entry_text_end",
        ]);
        let roles = of(Kind::Linux, Arch::X86_64, &symbols).unwrap();
        let role = |name| role_of(&roles, &symbols, name);
        assert_eq!(role("__x64_sys_newfstat"), Some(&Role::Names("fstat".into())));
        assert_eq!(role("__x64_sys_mmap"), Some(&Role::Names("mmap".into())));
        assert_eq!(role("asm_exc_page_fault"), Some(&Role::Entry("page fault".into())));
        assert_eq!(role("asm_exc_divide_error"), Some(&Role::Entry("other exception".into())));
        assert_eq!(role("asm_sysvec_reboot"), Some(&Role::Entry("interrupt".into())));
        assert_eq!(role("irq_entries_start"), Some(&Role::Entry("interrupt".into())));
        let missing: Vec<_> = symbols.into_iter().filter(|symbol| symbol.name != "__switch_to_asm").collect();
        assert!(of(Kind::Linux, Arch::X86_64, &missing).unwrap_err().contains("__switch_to_asm"));
    }

    #[test]
    fn the_reference_kernels_numbers_have_the_names_of_the_architecture() {
        let symbols = symbols(&["trap_stubs", "system_call_entry", "vectors", "note_cause", "KERNEL_CAUSES"]);
        let names = |arch| {
            let roles = of(Kind::Vellum, arch, &symbols).unwrap();
            roles.table.unwrap().1.into_iter().collect::<HashMap<_, _>>()
        };
        let [x86, arm] = [Arch::X86_64, Arch::Aarch64].map(names);
        assert_eq!((x86[&0].as_str(), x86[&11].as_str()), ("read", "munmap"));
        assert_eq!((arm[&63].as_str(), arm[&79].as_str()), ("read", "newfstatat"));
        assert_eq!((x86[&512].as_str(), x86[&518].as_str()), ("page fault", Roles::END));
    }
}
