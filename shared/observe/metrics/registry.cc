#include "shared/observe/metrics/registry.h"

#include <algorithm>
#include <map>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"

namespace wsync::metrics {
namespace {

// Returns the size of the character at the start of `text`, or 0 if it is not UTF-8 (RFC 3629).
std::size_t character_bytes(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((at(i) & 0xc0U) != 0x80) return 0;
  // Refuses overlong encodings, surrogates, and values above the last code point.
  if ((first == 0xe0 && at(1) < 0xa0) || (first == 0xed && at(1) > 0x9f) ||
      (first == 0xf0 && at(1) < 0x90) || (first == 0xf4 && at(1) > 0x8f))
    return 0;
  return bytes;
}

void check_labels(const Definition& what, const std::vector<std::string>& labels) {
  WSYNC_CHECK(labels.size() == what.label_count(), "a series has a value for each of its labels");
}

prometheus::Labels labels_of(const Definition& what, const std::vector<std::string>& labels) {
  check_labels(what, labels);
  prometheus::Labels named;
  for (std::size_t i = 0; i < labels.size(); ++i)
    named.emplace(what.labels[i], label_value(labels[i]));
  return named;
}

prometheus::ClientMetric metric_of(const Reading& reading) {
  check_labels(*reading.what, reading.labels);
  prometheus::ClientMetric metric;
  for (std::size_t i = 0; i < reading.labels.size(); ++i)
    metric.label.push_back(
        {.name = std::string(reading.what->labels[i]), .value = label_value(reading.labels[i])});
  if (reading.what->kind == Kind::kCounter)
    metric.counter.value = reading.value;
  else
    metric.gauge.value = reading.value;
  return metric;
}

}  // namespace

std::string label_value(std::string_view text) {
  std::string value;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string next = bytes > 0
                                 ? std::string(text.substr(0, bytes))
                                 : fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    if (value.size() + next.size() > kMaxLabelBytes) break;
    value += next;
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return value;
}

void Counter::add(double amount) { counter_->Increment(amount); }

void Histogram::observe(std::chrono::nanoseconds duration) {
  histogram_->Observe(std::max(0.0, seconds(duration)));
}

struct Registry::Impl {
  prometheus::Registry registry;
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const Definition& what, const std::vector<std::string>& labels) {
  WSYNC_CHECK(what.kind == Kind::kCounter,
              "a counter is requested with the definition of a counter");
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(what.name))
                     .Help(std::string(what.help))
                     .Register(impl_->registry);
  return Counter(family.Add(labels_of(what, labels)));
}

Histogram Registry::histogram(const Definition& what, const std::vector<std::string>& labels) {
  WSYNC_CHECK(what.kind == Kind::kHistogram,
              "a histogram is requested with the definition of a histogram");
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(what.name))
                     .Help(std::string(what.help))
                     .Register(impl_->registry);
  return Histogram(family.Add(
      labels_of(what, labels),
      prometheus::Histogram::BucketBoundaries(kDurationBuckets.begin(), kDurationBuckets.end())));
}

std::string Registry::text(const std::vector<Reading>& readings) const {
  std::map<std::string, prometheus::MetricFamily> families;
  for (prometheus::MetricFamily& family : impl_->registry.Collect())
    families.emplace(family.name, std::move(family));
  for (const Reading& reading : readings) {
    prometheus::MetricFamily& family = families[std::string(reading.what->name)];
    family.name = reading.what->name;
    family.help = reading.what->help;
    family.type = reading.what->kind == Kind::kCounter ? prometheus::MetricType::Counter
                                                       : prometheus::MetricType::Gauge;
    if (family.metric.size() < kMaxSeries) family.metric.push_back(metric_of(reading));
  }
  std::vector<prometheus::MetricFamily> sorted;
  for (auto& [name, family] : families) sorted.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(sorted);
}

}  // namespace wsync::metrics
