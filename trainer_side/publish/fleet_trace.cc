#include "trainer_side/publish/fleet_trace.h"

#include <chrono>
#include <unistd.h>
#include <utility>

#include "shared/base/host.h"
#include "shared/observe/trace/clock_offset.h"
#include "shared/observe/trace/span_codec.h"

namespace wsync::publish {
namespace {

trace::ClockReading reading_of(const control::TraceProcess& process) {
  return {.kind = process.clock,
          .offset = std::chrono::nanoseconds(process.offset_ns),
          .uncertainty = std::chrono::nanoseconds(process.uncertainty_ns)};
}

void put(control::TraceProcess& process, const trace::ClockReading& reading) {
  process.clock = reading.kind;
  process.offset_ns = reading.offset.count();
  process.uncertainty_ns = static_cast<std::uint64_t>(reading.uncertainty.count());
}

const control::TraceProcess* process_in(const FleetAnswer& answer) {
  const auto* traced = std::get_if<control::TraceAnswer>(&answer.message);
  return answer.failure || traced == nullptr || traced->processes.size() != 1
             ? nullptr
             : &traced->processes.front();
}

}  // namespace

control::TraceProcess own_trace(std::string name, const trace::Recorder& spans,
                                const control::TraceQuestion& question, TimePoint received) {
  control::TraceProcess own{.name = std::move(name),
                            .host = host_name(),
                            .pid = static_cast<std::uint32_t>(::getpid()),
                            .boot_id = boot_id(),
                            .asked_ns = question.asked_ns,
                            .received_ns = static_cast<std::int64_t>(received),
                            .answered_ns = static_cast<std::int64_t>(received)};
  trace::EncodedSpans encoded = trace::answer_spans(
      spans, std::chrono::nanoseconds(question.age_ns), question.max_bytes, received);
  own.dropped = encoded.left_out;
  own.spans = std::move(encoded.bytes);
  return own;
}

void measure_clock(control::TraceProcess& process, TimePoint heard) {
  put(process, trace::clock_offset({.asked = TimePoint{process.asked_ns},
                                    .received = TimePoint{process.received_ns},
                                    .answered = TimePoint{process.answered_ns},
                                    .heard = heard}));
}

control::TraceAnswer gathered_trace(control::TraceProcess own,
                                    const std::vector<FleetAnswer>& probes,
                                    std::vector<FleetAnswer> answers,
                                    const std::string& own_boot_id) {
  control::TraceAnswer gathered;
  own.clock = ClockKind::kSame;
  gathered.processes.push_back(std::move(own));
  for (FleetAnswer& answer : answers) {
    const control::TraceProcess* found = process_in(answer);
    if (found == nullptr) {
      gathered.processes.push_back({.name = (answer.is_sidecar ? "sidecar " : "") + answer.name,
                                    .failure = answer.failure.value_or("sent no trace")});
      continue;
    }
    control::TraceProcess& process = gathered.processes.emplace_back(*found);
    trace::ClockReading clock = reading_of(process);
    for (const FleetAnswer& probe : probes)
      if (const auto* probed = process_in(probe);
          probed && probe.name == answer.name && probe.is_sidecar == answer.is_sidecar)
        clock = trace::better_of(clock, reading_of(*probed));
    if (!own_boot_id.empty() && process.boot_id == own_boot_id) clock = trace::on_one_host(clock);
    put(process, clock);
  }
  return gathered;
}

}  // namespace wsync::publish
