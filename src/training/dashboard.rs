//! What burn-train's dashboard shows of a run.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn::train::SupervisedTraining;
use burn::train::metric::{
    LearningRateMetric, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::learner::{BatchReport, LanguageModel};
use super::session::Session;

/// Registers everything that the dashboard shows.
pub(super) fn with_gauges(
    training: SupervisedTraining<LanguageModel>,
    session: &Session,
) -> SupervisedTraining<LanguageModel> {
    training
        .metric_train(LastSample { session: session.clone() })
        .metric_train_numeric(Gauge::loss())
        .metric_valid_numeric(Gauge::loss())
        .metric_train_numeric(Gauge::perplexity())
        .metric_valid_numeric(Gauge::perplexity())
        .metric_train_numeric(Gauge::tokens_per_second())
        .metric_train_numeric(LearningRateMetric::new())
}

/// The dashboard in the terminal that this program's stdout is. What it is told to stop is `interrupter`.
#[cfg(feature = "cli")]
pub fn dashboard(interrupter: burn::train::Interrupter) -> Box<dyn burn::train::renderer::MetricsRenderer> {
    Box::new(burn::train::renderer::tui::TuiMetricsRendererWrapper::new(interrupter, None))
}

/// A number of batches, averaged over an epoch by their windows.
#[derive(Clone)]
struct Gauge {
    name: MetricName,
    unit: Option<&'static str>,
    higher_is_better: bool,
    read: fn(&BatchReport) -> f64,
    /// What an average is shown as.
    show: fn(f64) -> f64,
    sum: f64,
    windows: usize,
    last: Option<BatchReport>,
}

impl Gauge {
    fn new(name: &str, read: fn(&BatchReport) -> f64) -> Self {
        Self {
            name: Arc::new(name.to_owned()),
            unit: None,
            higher_is_better: false,
            read,
            show: |average| average,
            sum: 0.0,
            windows: 0,
            last: None,
        }
    }

    fn loss() -> Self {
        Self::new("Loss", |batch| batch.loss)
    }

    /// Of the mean loss, which the mean of perplexities is not.
    fn perplexity() -> Self {
        Self { show: f64::exp, ..Self::new("Perplexity", |batch| batch.loss) }
    }

    fn tokens_per_second() -> Self {
        let rate = Self::new("Tokens per second", |batch| batch.tokens_per_second);
        Self { unit: Some("tokens/s"), higher_is_better: true, ..rate }
    }

    fn of_last(&self) -> f64 {
        self.last.map_or(f64::NAN, |batch| (self.show)((self.read)(&batch)))
    }

    fn of_epoch(&self) -> f64 {
        (self.show)(self.sum / self.windows as f64)
    }

    fn entry(&self, number: &NumericEntry) -> SerializedEntry {
        let unit = self.unit.map(|unit| format!(" {unit}")).unwrap_or_default();
        let formatted = format!("epoch {:.4}{unit} - batch {:.4}{unit}", self.of_epoch(), self.of_last());
        SerializedEntry::new(formatted, number.serialize())
    }
}

impl Metric for Gauge {
    type Input = BatchReport;

    fn name(&self) -> MetricName {
        Arc::clone(&self.name)
    }

    fn attributes(&self) -> MetricAttributes {
        let unit = self.unit.map(str::to_owned);
        NumericAttributes { unit, higher_is_better: self.higher_is_better }.into()
    }

    fn update(&mut self, batch: &BatchReport, _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        let value = (self.read)(batch);
        // There is no rate before the first step.
        if value.is_finite() {
            self.sum += value * batch.windows as f64;
            self.windows += batch.windows;
        }
        self.last = Some(*batch);
        Ok(self.entry(&NumericEntry::Value(self.of_last())))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(&self.final_value()))
    }

    fn clear(&mut self) {
        (self.sum, self.windows, self.last) = (0.0, 0, None);
    }
}

impl Numeric for Gauge {
    fn value(&self) -> Option<NumericEntry> {
        Some(self.of_last()).filter(|value| value.is_finite()).map(NumericEntry::Value)
    }

    fn running_value(&self) -> Option<NumericEntry> {
        let aggregated_value = self.of_epoch();
        let entry = NumericEntry::Aggregated { aggregated_value, count: self.windows };
        aggregated_value.is_finite().then_some(entry)
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(self.of_epoch())
    }
}

/// The text that the model wrote last.
#[derive(Clone)]
struct LastSample {
    session: Session,
}

impl Metric for LastSample {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Sample".to_owned())
    }

    fn update(&mut self, _: &(), _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        let sample = self.session.last_sample().escape_debug().to_string();
        Ok(SerializedEntry::new(sample.clone(), sample))
    }

    fn clear(&mut self) {}
}

#[cfg(test)]
mod tests {
    use burn::data::dataloader::Progress;

    use super::*;

    #[test]
    fn averages_are_over_windows() {
        let metadata = MetricMetadata { progress: Progress::new(1, 1, None), iteration: None, lr: None };
        let batch = |loss, windows| BatchReport { loss, windows, tokens_per_second: f64::NAN };
        let (mut loss, mut perplexity, mut rate) = (Gauge::loss(), Gauge::perplexity(), Gauge::tokens_per_second());
        for batch in [batch(1.0, 3), batch(2.0, 1)] {
            loss.update(&batch, &metadata).expect("numbers on the host");
            perplexity.update(&batch, &metadata).expect("numbers on the host");
            rate.update(&batch, &metadata).expect("numbers on the host");
        }
        assert_eq!(loss.final_value().current(), 1.25);
        assert_eq!(loss.value().map(|value| value.current()), Some(2.0));
        assert_eq!(perplexity.final_value().current(), 1.25_f64.exp());
        assert!(rate.value().is_none() && rate.running_value().is_none());
        loss.clear();
        assert!(loss.running_value().is_none());
    }
}
