//! Panics from below, kept off the user's screen. Outside errors are caught where they arise; what arrives here is a
//! mistake of this program or of a library under it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::{Mutex, Once, PoisonError};

/// The first panic on any thread; later ones follow from it.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Runs `f`; a panic in it, or in a thread that makes it fail, becomes the panic's message.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_hook(Box::new(|panic| {
            let place = panic.location().map(|place| format!(" ({}:{})", file_name(place.file()), place.line()));
            let message = format!("{}{}", message_of(panic.payload()), place.unwrap_or_default());
            FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(message);
        }));
    });
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let first = FIRST.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| message_of(payload.as_ref()))
    })
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    shortened(text.as_deref().unwrap_or("panic without a message"))
}

/// The start of a message. Those of libtorch go on for pages, with line breaks written as `\n` by Rust's `unwrap`.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 300;
    let text = text.trim_start_matches("called `Result::unwrap()` on an `Err` value: ");
    let text = text.split("\\n").next().unwrap_or(text);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The file alone: where it lay when the program was built is of no use to anybody.
fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
