//! Extensions: options and report parts that another crate adds to the inspection.
//!
//! An [`Extension`] is a set of command-line options. If the options ask for its part of the
//! report, its [`Collector`] receives the pages and empty page tables of each surveyed process.
//! After the last process is surveyed, each collector's [`Analysis`] runs, and the [`Part`] it
//! returns joins the process's report as text, JSON and HTML. The command `vellum` adds
//! `--estimate` this way.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;

use maud::Markup;
use vellum_pagemap::{Memory, Region, Vma, VmaSurvey};

/// Command-line options that add a part to the report of each process.
pub trait Extension: clap::Args {
    /// Returns whether the options ask for the part.
    fn is_wanted(&self) -> bool;

    /// Returns the collector for a process of this size. Called only if the part is wanted.
    fn collector(&self, memory: &Memory) -> Box<dyn Collector>;
}

/// The extension that adds no options and no part.
impl Extension for () {
    fn is_wanted(&self) -> bool {
        false
    }

    fn collector(&self, _: &Memory) -> Box<dyn Collector> {
        unreachable!("no part is wanted")
    }
}

/// Receives a process's memory while it is surveyed.
pub trait Collector {
    /// Receives a region of pages with equal categories, in ascending order. `order` is the order
    /// of the folios that the pages are in, or 0 if this user may not see folios.
    fn pages(&mut self, region: &Region, vma: &Vma, order: usize);

    /// Receives the start of the addresses that an empty last-level page table serves.
    fn empty_table(&mut self, start: u64);

    /// Receives the surveyed VMAs and returns the analysis of all that was collected.
    fn finish(self: Box<Self>, vmas: &[VmaSurvey]) -> Analysis;
}

/// A function that computes the part of one process's report. It fails soon after its argument, the
/// stop flag, is set.
pub type Analysis = Box<dyn FnOnce(&AtomicBool) -> anyhow::Result<Box<dyn Part>>>;

/// A part of one process's report.
pub trait Part {
    /// Writes the part as text for a terminal.
    ///
    /// # Errors
    /// Returns the error of `out`.
    fn write(&self, out: &mut dyn Write) -> io::Result<()>;

    /// Returns the part as an HTML article.
    fn html(&self) -> Markup;

    /// Returns the value of the process's key `estimate` in JSON.
    ///
    /// # Errors
    /// Returns the serialiser's error.
    fn json(&self) -> serde_json::Result<serde_json::Value>;
}
