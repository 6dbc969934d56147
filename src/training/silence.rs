//! A renderer and a log for burn-train that say nothing: a run reports through its own events.

use burn::train::logger::{EvaluationProgressLogger, MetricLogger, TrainingProgressLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};

/// Shows nothing and keeps nothing.
pub(super) struct Silence;

impl MetricsRendererTraining for Silence {
    fn update_train(&mut self, _state: MetricState) {}

    fn update_valid(&mut self, _state: MetricState) {}
}

impl MetricsRendererEvaluation for Silence {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl MetricsRenderer for Silence {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}

impl TrainingProgressLogger for Silence {
    fn start(&mut self, _epochs: usize, _starting_epoch: usize, _items: Option<usize>, _label: Option<&str>) {}

    fn update_epoch(&mut self, _epoch: usize) {}

    fn start_split(&mut self, _split: &str, _items: usize) {}

    fn update_split(&mut self, _items_processed: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Silence {
    fn start_global_progress(&mut self, _tests: usize) {}

    fn start_test(&mut self, _name: &str, _items: usize) {}

    fn update_test_progress(&mut self, _items_processed: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricLogger for Silence {
    fn log(&mut self, _update: MetricsUpdate, _epoch: usize, _split: &Split) {}

    fn read_numeric(&mut self, _name: &str, _epoch: usize, _split: &Split) -> Result<Vec<NumericEntry>, String> {
        Ok(Vec::new())
    }

    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}
