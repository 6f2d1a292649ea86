// Registry: the counters and histograms of a process, and their text in Prometheus' format. Values
// that can be looked up on request are not stored here; the caller passes them to text() as
// readings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/observe/metrics/definition.h"

namespace prometheus {
class Counter;
class Histogram;
}  // namespace prometheus

namespace wsync::metrics {

// Maximum number of series per metric on a page. The series of a larger fleet are cut off.
inline constexpr std::size_t kMaxSeries = 32'768;
inline constexpr std::size_t kMaxLabelBytes = 128;  // per label value; the rest is cut off

// Current value of a gauge, or of a counter that is kept elsewhere.
struct Reading {
  const Definition* what = nullptr;  // static lifetime
  double value = 0;
  std::vector<std::string> labels;  // one value per label name of `what`
};

// Counter and Histogram: an update takes a few nanoseconds. Thread: any. The registry outlives
// them.
class Counter {
 public:
  explicit Counter(prometheus::Counter& counter) : counter_(&counter) {}
  void add(double amount = 1);

 private:
  prometheus::Counter* counter_;
};
class Histogram {
 public:
  explicit Histogram(prometheus::Histogram& histogram) : histogram_(&histogram) {}
  void observe(std::chrono::nanoseconds duration);

 private:
  prometheus::Histogram* histogram_;
};

// Thread: any.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Returns the series with these label values, and creates it if it does not exist. Series whose
  // label values are known are created at startup, so that they are exported as 0 before the first
  // event.
  [[nodiscard]] Counter counter(const Definition& what,
                                const std::vector<std::string>& labels = {});
  [[nodiscard]] Histogram histogram(const Definition& what,
                                    const std::vector<std::string>& labels = {});

  // Returns all metrics in Prometheus' text format 0.0.4, sorted by name. Bytes of label values
  // that are not UTF-8 become \xNN.
  [[nodiscard]] std::string text(const std::vector<Reading>& readings) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the label value as it is exported: valid UTF-8, at most kMaxLabelBytes.
[[nodiscard]] std::string label_value(std::string_view text);

}  // namespace wsync::metrics
