// Registry: the counters and histograms of a process, and the text that Prometheus reads. What can
// be looked up when somebody asks is not kept here: it is given to text() as readings.
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

// Series of one metric that a page shows; the rest of a larger fleet is left out.
inline constexpr std::size_t kMaxSeries = 32'768;
inline constexpr std::size_t kMaxLabelBytes = 128;  // of a value; more is cut off

// A gauge, or a counter that somebody else keeps, as it is now.
struct Reading {
  const Definition* what = nullptr;  // of static life
  double value = 0;
  std::vector<std::string> labels;  // as many as `what` has names
};

// Both: a few nanoseconds. Thread: any. Outlived by the registry.
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

  // The series of these label values, made when it is new. Those whose labels have few values are
  // made at the start, so that they are there as 0 before anything happens.
  [[nodiscard]] Counter counter(const Definition& what,
                                const std::vector<std::string>& labels = {});
  [[nodiscard]] Histogram histogram(const Definition& what,
                                    const std::vector<std::string>& labels = {});

  // Everything, in Prometheus' text format 0.0.4, by name. Bytes of label values that are not UTF-8
  // become \xNN.
  [[nodiscard]] std::string text(const std::vector<Reading>& readings) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The label value as it is shown: UTF-8, at most kMaxLabelBytes.
[[nodiscard]] std::string label_value(std::string_view text);

}  // namespace wsync::metrics
