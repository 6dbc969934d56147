//! The threads that kernels work with. Between two pieces of work that follow each other within microseconds they stay
//! awake: to wake a thread takes longer than many products of one step of decoding.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a thread without work stays awake.
const AWAKE: Duration = Duration::from_micros(60);

/// Work that every thread of the team calls.
type Work<'a> = dyn Fn() + Sync + 'a;

/// Helpers that join the work of one caller at a time.
struct Team {
    helpers: usize,
    /// Whether a caller has the team.
    is_taken: AtomicBool,
    /// The number of the work (above `GENERATION`), how many helpers are at it (from `JOINED` on), and whether more may
    /// join (`OPEN`).
    state: AtomicU64,
    /// The work of this number; a pointer without the lifetime that the protocol of `state` keeps.
    work: Mutex<Option<WorkPointer>>,
    /// Whether a helper has panicked in this work.
    has_panicked: AtomicBool,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

const OPEN: u64 = 1;
const JOINED: u64 = 1 << 1;
const GENERATION: u64 = 1 << 32;

#[derive(Clone, Copy)]
struct WorkPointer(*const Work<'static>);

// SAFETY: the pointer is to something `Sync`, and is followed only by helpers that have joined, for which the owner waits.
unsafe impl Send for WorkPointer {}

/// How many threads work, the calling one among them.
pub(super) fn threads() -> usize {
    team().helpers + 1
}

/// Calls `work` here and, at the same time, on helpers that are free. Who comes late may find nothing left to do, so `work`
/// takes what it does from a shared list.
///
/// # Panics
///
/// Where `work` does, here or on a helper.
pub(super) fn together(work: &Work) {
    let team = team();
    if team.helpers == 0 || team.is_taken.swap(true, Ordering::Acquire) {
        return work();
    }
    // Closes the work and waits for those at it, also where `work` panics.
    struct Close<'a>(&'a Team, &'a Cell<bool>);
    impl Drop for Close<'_> {
        fn drop(&mut self) {
            let Self(team, has_panicked) = self;
            team.state.fetch_and(!OPEN, Ordering::AcqRel);
            while !team.state.load(Ordering::Acquire).is_multiple_of(GENERATION) {
                std::hint::spin_loop();
            }
            has_panicked.set(team.has_panicked.swap(false, Ordering::Relaxed));
            team.is_taken.store(false, Ordering::Release);
        }
    }
    let has_panicked = Cell::new(false);
    // SAFETY: only the lifetime changes. Helpers follow the pointer between joining, which they can while the work is open,
    // and leaving; `Close` closes it and waits until all have left, before `work` goes.
    let pointer = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
    *team.work.lock().expect("nothing panics while it is held") = Some(WorkPointer(pointer));
    let close = Close(team, &has_panicked);
    let generation = team.state.load(Ordering::Relaxed) / GENERATION + 1;
    team.state.store(generation.wrapping_mul(GENERATION) | OPEN, Ordering::SeqCst);
    if team.sleepers.load(Ordering::SeqCst) > 0 {
        drop(team.bed.lock().expect("nothing panics while it is held"));
        team.bell.notify_all();
    }
    work();
    drop(close);
    assert!(!has_panicked.get(), "a thread of the kernels panicked");
}

fn team() -> &'static Team {
    static TEAM: OnceLock<&'static Team> = OnceLock::new();
    TEAM.get_or_init(|| {
        let helpers = rayon::current_num_threads().saturating_sub(1);
        let team: &'static Team = Box::leak(Box::new(Team {
            helpers,
            is_taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            work: Mutex::new(None),
            has_panicked: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }));
        for index in 0..helpers {
            let name = format!("burnformer-{index}");
            std::thread::Builder::new().name(name).spawn(move || help(team)).expect("the system starts a thread");
        }
        team
    })
}

/// What a helper does all its life.
fn help(team: &Team) {
    let mut last = 0;
    loop {
        let state = wait(team, last);
        last = state / GENERATION;
        let joined = team.state.compare_exchange(state, state + JOINED, Ordering::AcqRel, Ordering::Relaxed);
        if joined.is_err() {
            // Another has joined or the work is closed; a look decides.
            last = last.wrapping_sub(1);
            continue;
        }
        struct Leave<'a>(&'a Team);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.state.fetch_sub(JOINED, Ordering::AcqRel);
            }
        }
        let leave = Leave(team);
        let work = team.work.lock().expect("nothing panics while it is held").expect("open work is there");
        // SAFETY: this helper has joined open work, so its owner waits for it to leave.
        let work = unsafe { &*work.0 };
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            team.has_panicked.store(true, Ordering::Relaxed);
        }
        drop(leave);
    }
}

/// Waits for open work with a number after `last`.
fn wait(team: &Team, last: u64) -> u64 {
    let is_new = |state: u64| state & OPEN != 0 && state / GENERATION != last;
    loop {
        let since = Instant::now();
        let mut spins = 0_u32;
        loop {
            let state = team.state.load(Ordering::Acquire);
            if is_new(state) {
                return state;
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(64) && since.elapsed() > AWAKE {
                break;
            }
        }
        let bed = team.bed.lock().expect("nothing panics while it is held");
        team.sleepers.fetch_add(1, Ordering::SeqCst);
        // Work that came before the last line would not ring.
        let _bed = team.bell.wait_while(bed, |()| !is_new(team.state.load(Ordering::SeqCst)));
        team.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::{AWAKE, together};

    #[test]
    fn all_work_is_done_when_a_call_returns() {
        for round in 0..2000 {
            let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            together(&|| {
                while next.fetch_add(1, Ordering::Relaxed) < 7 {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.load(Ordering::Relaxed), 7, "round {round}");
            // Some helpers sleep by now, and some do not.
            if round % 100 == 0 {
                std::thread::sleep(2 * AWAKE);
            }
        }
    }

    #[test]
    fn callers_on_several_threads_and_inside_each_other_finish() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let inner = AtomicUsize::new(0);
                        together(&|| {
                            together(&|| {
                                inner.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(inner.load(Ordering::Relaxed) >= 1);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_arrives_at_the_caller_and_the_team_works_on() {
        let outcome = std::panic::catch_unwind(|| together(&|| panic!("as it should")));
        assert!(outcome.is_err());
        let calls = AtomicUsize::new(0);
        together(&|| {
            calls.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
        });
        assert!(calls.load(Ordering::Relaxed) >= 1);
    }
}
