//! Where shard threads run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whether shard threads are bound to one CPU each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Bound if there are fewer shards than CPUs. With a shard on every CPU, a bound thread could not step aside for
    /// the applications that it serves.
    #[default]
    Auto,
    /// Always bound.
    On,
    /// Never bound.
    Off,
}

/// The CPUs that this process may use, in ascending order; empty if the kernel does not tell.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The CPU of this shard, or none if it is to roam.
#[must_use]
pub fn cpu_of(shard: u16, shards: u16, pin: Pin, allowed: &[usize]) -> Option<usize> {
    let bound = match pin {
        Pin::Auto => usize::from(shards) < allowed.len(),
        Pin::On => true,
        Pin::Off => false,
    };
    if !bound || allowed.is_empty() {
        return None;
    }
    allowed.get(usize::from(shard) % allowed.len()).copied()
}

/// Binds the calling thread to this CPU. `false`: the kernel refused, and the thread roams.
#[must_use]
pub fn bind(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_bound_only_while_a_cpu_is_left_over() {
        let four = [2, 3, 6, 7];
        let cases = [
            (0, 2, Pin::Auto, &four[..], Some(2)),
            (1, 2, Pin::Auto, &four[..], Some(3)),
            (0, 4, Pin::Auto, &four[..], None),
            (3, 4, Pin::On, &four[..], Some(7)),
            (5, 6, Pin::On, &four[..], Some(3)),
            (0, 1, Pin::Off, &four[..], None),
            (0, 1, Pin::On, &[][..], None),
        ];
        for (shard, shards, pin, allowed, cpu) in cases {
            assert_eq!(cpu_of(shard, shards, pin, allowed), cpu, "{shard}/{shards} {pin:?} {allowed:?}");
        }
    }

    #[test]
    fn a_thread_binds_to_an_allowed_cpu() {
        let outcome = std::thread::spawn(|| {
            let allowed = allowed_cpus();
            let last = *allowed.last().expect("at least one CPU");
            (bind(last), allowed_cpus(), last)
        });
        let (bound, now_allowed, last) = outcome.join().expect("the thread");
        assert!(bound);
        assert_eq!(now_allowed, [last]);
    }
}
