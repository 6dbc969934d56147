//! A bar on stderr while a model is loaded.

use burnformer::pretrained::LoadProgress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::arguments::Show;

/// The bar; it is seen only where stderr is a terminal and `--quiet` is not given, and goes when it is dropped.
pub struct LoadingBar(ProgressBar);

impl LoadingBar {
    pub fn new(show: &Show) -> Self {
        let target = if show.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("loading {bar:30} {pos}/{len} parameters");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::with_draw_target(None, target).with_style(style))
    }

    pub fn show(&self, LoadProgress { done, total }: LoadProgress) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }
}

impl Drop for LoadingBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
