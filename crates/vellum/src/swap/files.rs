//! Which clusters have room, and for how much: a list of clusters for each size of block that they have free.
//!
//! A cluster is filed by the largest aligned block that is free in it, is some CPU's own, or, having nothing free, is nowhere.
//! Slots are taken only from a cluster that is a CPU's own, so one that is filed has what its file promises, or more. Its place
//! is changed with its own lock held, but for one thing: whoever takes a cluster out of its file makes it its own.

use core::sync::atomic::Ordering::Relaxed;

use super::cluster::Cluster;
use super::paged::Paged;
use crate::frame::HUGE_ORDER;

/// No cluster: the end of a list.
pub(super) const NONE: u32 = u32::MAX;

/// How many files there are.
const FILES: usize = HUGE_ORDER as usize + 1;

// What a cluster's place says: one more than the order by which it is filed, or one of these. More room moves a cluster to a
// higher place, and one that is a CPU's own not at all.
const NOWHERE: u8 = 0;
const OWN: u8 = FILES as u8 + 1;

/// The first cluster of each file. What the lock of the files protects, with the links in clusters.
#[derive(Debug)]
pub(super) struct Files([u32; FILES]);

impl Files {
    pub(super) const fn new() -> Self {
        Files([NONE; FILES])
    }

    /// Take out the cluster with the least room of those that have a block of this order free, for a CPU to own. So large
    /// blocks stay whole as long as smaller ones will do.
    pub(super) fn pop(&mut self, clusters: &Paged<Cluster>, order: u8) -> Option<u32> {
        let index = self.0.iter().skip(order as usize).copied().find(|first| *first != NONE)?;
        self.unlink(clusters, clusters.get(index));
        clusters.get(index).place.store(OWN, Relaxed);
        Some(index)
    }

    /// File a cluster that was a CPU's own; its lock is held.
    pub(super) fn give_up(&mut self, clusters: &Paged<Cluster>, index: u32, room: Option<u8>) {
        let cluster = clusters.get(index);
        debug_assert_eq!(cluster.place.load(Relaxed), OWN);
        self.link(clusters, index, cluster, room);
    }

    /// Whether a cluster, whose lock is held, belongs elsewhere if it has this room, which is asked for only if that matters. A
    /// moment later it may be somebody's own.
    #[inline]
    pub(super) fn would_move(cluster: &Cluster, room: impl FnOnce() -> Option<u8>) -> bool {
        let place = cluster.place.load(Relaxed);
        place < FILES as u8 && place < place_of(room())
    }

    /// A cluster, whose lock is held, has more room than it had.
    pub(super) fn refile(&mut self, clusters: &Paged<Cluster>, index: u32, room: Option<u8>) {
        let cluster = clusters.get(index);
        if Files::would_move(cluster, || room) {
            if cluster.place.load(Relaxed) != NOWHERE {
                self.unlink(clusters, cluster);
            }
            self.link(clusters, index, cluster, room);
        }
    }

    fn link(&mut self, clusters: &Paged<Cluster>, index: u32, cluster: &Cluster, room: Option<u8>) {
        cluster.place.store(place_of(room), Relaxed);
        let Some(room) = room else { return };
        let first = &mut self.0[room as usize];
        cluster.links[0].store(*first, Relaxed);
        cluster.links[1].store(NONE, Relaxed);
        if *first != NONE {
            clusters.get(*first).links[1].store(index, Relaxed);
        }
        *first = index;
    }

    fn unlink(&mut self, clusters: &Paged<Cluster>, cluster: &Cluster) {
        let [next, previous] = [0, 1].map(|i| cluster.links[i].load(Relaxed));
        if next != NONE {
            clusters.get(next).links[1].store(previous, Relaxed);
        }
        if previous != NONE {
            clusters.get(previous).links[0].store(next, Relaxed);
        } else {
            self.0[cluster.place.load(Relaxed) as usize - 1] = next;
        }
    }
}

fn place_of(room: Option<u8>) -> u8 {
    room.map_or(NOWHERE, |order| order + 1)
}
