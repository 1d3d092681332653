//! The description of a machine, from which it is built.

use std::io;

use vellum::addr::PhysAddr;
use vellum::arch::X86_64;
use vellum::platform::Region;

use crate::arena::Ram;
use crate::fast::Fast;
use crate::hardware::Hardware;
use crate::model::TlbModel;
use crate::schedule::Schedule;
use crate::strict::{Strict, Strictness};
use crate::walker::Silicon;

/// The base of memory unless regions are given. It is not 0, so that a forgotten base shows, and a
/// multiple of 2 MiB.
const DEFAULT_BASE: u64 = 2 << 20;

/// The description of a machine.
#[derive(Clone, Debug)]
pub struct Config<A = X86_64> {
    pub(crate) arch: A,
    pub(crate) cpus: usize,
    pub(crate) nodes: Vec<usize>,
    pub(crate) ram: Ram,
    pub(crate) tlb: Option<TlbModel>,
    pub(crate) software_ad_bits: bool,
}

impl Config<X86_64> {
    /// Describes an x86-64 machine with four levels of page tables, one CPU, and `memory` zeroed
    /// bytes in one region.
    pub fn new(memory: u64) -> Self {
        Config::with_arch(X86_64::four_levels(), memory)
    }
}

impl<A: Silicon> Config<A> {
    /// Describes a machine with one CPU, and `memory` zeroed bytes in one region.
    pub fn with_arch(arch: A, memory: u64) -> Self {
        let regions = vec![Region { base: PhysAddr(DEFAULT_BASE), len: memory, zeroed: true, node: 0 }];
        let ram = Ram { regions, prefault: false, reserve_swap: false, host_huge_pages: false };
        Config { arch, cpus: 1, nodes: Vec::new(), ram, tlb: None, software_ad_bits: false }
    }

    /// Sets the number of CPUs.
    pub fn cpus(mut self, cpus: usize) -> Self {
        self.cpus = cpus;
        self
    }

    /// Sets the NUMA node of each CPU; CPUs beyond the end of `nodes` are on node 0. The node of
    /// memory is a field of its region.
    pub fn cpu_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.nodes = nodes.into();
        self
    }

    /// Replaces the memory regions. A region that is not `zeroed` is filled with junk.
    pub fn regions(mut self, regions: impl Into<Vec<Region>>) -> Self {
        self.ram.regions = regions.into();
        self
    }

    /// Makes the host allocate all memory now, so that no measurement contains the host's own page
    /// faults.
    pub fn prefault(mut self) -> Self {
        self.ram.prefault = true;
        self
    }

    /// Makes the host reserve swap space for all memory, so that the host can't run out of memory
    /// for the machine later. By default the host reserves none.
    pub fn reserve_swap(mut self) -> Self {
        self.ram.reserve_swap = true;
        self
    }

    /// Asks the host to back memory by huge pages, which takes the host's TLB out of a measurement.
    pub fn host_huge_pages(mut self) -> Self {
        self.ram.host_huge_pages = true;
        self
    }

    /// Gives the CPUs these TLBs. By default a fast machine has none (each access walks), a strict
    /// one [`TlbModel::SMALL`].
    pub fn tlb(mut self, model: TlbModel) -> Self {
        self.tlb = Some(model);
        self
    }

    /// Leaves the accessed and dirty bits to software: an access that has to set one faults
    /// (AArch64 without FEAT_HAFDBS; RISC-V with Svade and without Svadu. No x86-64 CPU does so).
    pub fn software_ad_bits(mut self) -> Self {
        self.software_ad_bits = true;
        self
    }

    /// Builds a machine for benchmarks.
    ///
    /// # Errors
    /// If the host refuses the memory.
    pub fn fast(self) -> io::Result<Fast<A>> {
        let model = self.tlb.clone().unwrap_or(TlbModel::NONE);
        Ok(Fast::new(self.hardware(model, Schedule::Host)?))
    }

    /// Builds a machine for tests. It asks the host for huge pages. Most tests use little memory
    /// for a short time, and with small pages the host's page faults would take half of that time.
    ///
    /// # Errors
    /// If the host refuses the memory.
    pub fn strict(self, strictness: Strictness) -> io::Result<Strict<A>> {
        let config = self.host_huge_pages();
        let model = config.tlb.clone().unwrap_or(TlbModel::SMALL);
        Ok(Strict::new(config.hardware(model, strictness.schedule)?, strictness))
    }

    fn hardware(self, model: TlbModel, schedule: Schedule) -> io::Result<Hardware<A>> {
        Hardware::new(self.arch, (self.cpus, self.nodes), &self.ram, model, schedule, self.software_ad_bits)
    }
}
