#include "bench/gpu/report.h"

#include <algorithm>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr double kGiga = 1e9;

json gpu_json(const device::GpuFacts& gpu) {
  return {{"gpu", gpu.gpu},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci", gpu.pci},
          {"compute", device::compute_text(gpu)},
          {"total_bytes", gpu.total_bytes},
          {"numa_node", gpu.numa_node ? json(*gpu.numa_node) : json()},
          {"pcie_now", gpu.pcie_now},
          {"pcie_most", gpu.pcie_max},
          {"peers", gpu.peers}};
}

json copy_json(const CopyCase& done) {
  return {{"name", done.name},
          {"gpu", done.gpu},
          {"bytes", done.bytes},
          {"times", done.times},
          {"ceiling", done.ceiling},
          {"ceiling_bytes_per_s", spread_json(done.ceiling_rate)},
          {"bytes_per_s", spread_json(done.rate)},
          {"ratio", spread_json(done.ratio)},
          {"ratio_target", done.target},
          {"met", done.met()},
          {"rounds", {{"ceiling_bytes_per_s", done.ceiling_rates}, {"bytes_per_s", done.rates}}}};
}

json page_size_json(const PageSizeCase& done) {
  return {{"pages", done.pages},
          {"gpu", done.gpu},
          {"bytes", done.bytes},
          {"missing", done.missing},
          {"fallback", done.fallback},
          {"register_s", spread_json(done.register_s)},
          {"bytes_per_s", spread_json(done.rate)},
          {"rounds", {{"register_s", done.taken}, {"bytes_per_s", done.copied}}}};
}

json pipeline_json(const PipelineCase& done) {
  json rounds = json::array();
  for (const auto& round : done.rounds)
    rounds.push_back({{"h2d_s", round.h2d},
                      {"broadcast_s", round.broadcast},
                      {"reload_s", round.reload},
                      {"two_stages_s", round.two_stages},
                      {"three_stages_s", round.three_stages}});
  return {{"gpus", done.gpus},
          {"bytes", done.bytes},
          {"buffer_bytes", done.buffer_bytes},
          {"h2d_s", spread_json(done.h2d)},
          {"broadcast_s", spread_json(done.broadcast)},
          {"reload_s", spread_json(done.reload)},
          {"two_stages_s", spread_json(done.two_stages)},
          {"three_stages_s", spread_json(done.three_stages)},
          {"two_stages_ratio", spread_json(done.two_ratio)},
          {"three_stages_ratio", spread_json(done.three_ratio)},
          {"three_stages_ratio_target", kThreeStageTarget},
          {"met", done.met()},
          {"rounds", std::move(rounds)}};
}

json pause_json(const PauseCase& done) {
  json rounds = json::array();
  for (const Pushed& pushed : done.rounds)
    rounds.push_back({{"paused_ns", pushed.paused_ns},
                      {"load_ns", pushed.load_ns},
                      {"staged_ns", pushed.staged_ns},
                      {"checked_bytes", pushed.checked_bytes}});
  return {{"gpus", done.gpus},
          {"bytes", done.bytes},
          {"changed", done.changed},
          {"by_patch", done.by_patch},
          {"written_bytes", done.written_bytes},
          {"paused_ns", spread_json(done.paused_ns)},
          {"load_ns", spread_json(done.load_ns)},
          {"rounds", std::move(rounds)}};
}

std::string range(const Spread& spread) {
  return fmt::format("{:.3f}-{:.3f}", spread.min, spread.max);
}

std::string copies_text(const std::vector<CopyCase>& cases) {
  std::string text =
      fmt::format("{:<4} {:<26} {:>12} {:>12} {:>6} {:<12} {:>7}  {}\n", "GPU", "copy",
                  "ceiling GB/s", "ours GB/s", "ratio", "min-max", "target", "");
  for (const CopyCase& done : cases)
    text += fmt::format("{:<4} {:<26} {:>12.1f} {:>12.1f} {:>6.3f} {:<12} {:>7}  {}\n", done.gpu,
                        done.name, done.ceiling_rate.median / kGiga, done.rate.median / kGiga,
                        done.ratio.median, range(done.ratio), fmt::format(">= {:.2f}", done.target),
                        done.met() ? "met" : "missed");
  return text;
}

std::string page_sizes_text(const std::vector<PageSizeCase>& cases) {
  std::string text =
      fmt::format("{:<4} {:<18} {:>16} {:<15} {:>10} {:<13}\n", "GPU", "pages of an arena",
                  "register s/GiB", "min-max", "H2D GB/s", "min-max");
  for (const PageSizeCase& done : cases) {
    if (!done.measured()) {
      text += fmt::format("{:<4} {:<18} not available: {}\n", done.gpu, done.pages, done.missing);
      continue;
    }
    const double gib = static_cast<double>(done.bytes) / static_cast<double>(limits::kGiB);
    text += fmt::format(
        "{:<4} {:<18} {:>16.4f} {:<15} {:>10.1f} {:<13} {}\n", done.gpu, done.pages,
        done.register_s.median / gib,
        fmt::format("{:.4f}-{:.4f}", done.register_s.min / gib, done.register_s.max / gib),
        done.rate.median / kGiga,
        fmt::format("{:.1f}-{:.1f}", done.rate.min / kGiga, done.rate.max / kGiga),
        done.fallback.empty() ? "" : "not registered: " + done.fallback);
  }
  return text;
}

std::string pipelines_text(const std::vector<PipelineCase>& cases) {
  std::string text =
      fmt::format("{:<12} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8} {:>6} {:<12} {:>7}  {}\n",
                  "GPUs", "model", "buffer", "H2D", "broadcast", "reload", "2 stages", "3 stages",
                  "ratio", "min-max", "target", "");
  for (const PipelineCase& done : cases)
    text += fmt::format(
        "{:<12} {:>8} {:>8} {:>8.3f} {:>9.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>6.3f} {:<12} {:>7}  "
        "{}\n",
        fmt::format("{}", fmt::join(done.gpus, ",")), trace::format_bytes(done.bytes),
        trace::format_bytes(done.buffer_bytes), done.h2d.median, done.broadcast.median,
        done.reload.median, done.two_stages.median, done.three_stages.median,
        done.three_ratio.median, range(done.three_ratio),
        fmt::format("<= {:.2f}", kThreeStageTarget), done.met() ? "met" : "missed");
  return text;
}

std::string pauses_text(const std::vector<PauseCase>& cases) {
  std::string text =
      fmt::format("{:<12} {:>8} {:>8} {:<6} {:>10} {:<23} {:>10} {:>12}\n", "engines on", "model",
                  "changed", "by", "paused ms", "min-max", "load ms", "model GB/s");
  for (const PauseCase& done : cases)
    text += fmt::format(
        "{:<12} {:>8} {:>7.1f}% {:<6} {:>10.2f} {:<23} {:>10.2f} {:>12.1f}\n",
        fmt::format("{}", fmt::join(done.gpus, ",")), trace::format_bytes(done.bytes),
        100 * done.changed, done.by_patch ? "patch" : "all", done.paused_ns.median * 1e-6,
        fmt::format("{:.2f}-{:.2f}", done.paused_ns.min * 1e-6, done.paused_ns.max * 1e-6),
        done.load_ns.median * 1e-6, static_cast<double>(done.bytes) / done.paused_ns.median);
  return text;
}

std::vector<double> in_gigabytes(std::vector<double> rates) {
  for (double& rate : rates) rate /= kGiga;
  return rates;
}

CaseResult copy_result(const CopyCase& done) {
  CaseResult result =
      case_of("gpu", done.name, fmt::format("GPU {}", done.gpu), in_gigabytes(done.rates));
  result.bytes = done.bytes * done.times;
  set_baseline(result, done.ceiling, in_gigabytes(done.ceiling_rates));
  result.target = Target{.of = Target::Of::kRatio, .value = done.target};
  return result;
}

std::vector<CaseResult> page_size_results(const PageSizeCase& done) {
  if (!done.measured()) return {};
  const std::string which = fmt::format("{}, GPU {}", done.pages, done.gpu);
  std::vector<double> registered;
  for (const double taken : done.taken)
    registered.push_back(static_cast<double>(done.bytes) / std::max(taken, 1e-9) / kGiga);
  std::vector<CaseResult> results = {
      case_of("gpu", "registration, pages", which, std::move(registered)),
      case_of("gpu", "H2D, pages", which, in_gigabytes(done.copied))};
  for (CaseResult& result : results) result.bytes = done.bytes;
  return results;
}

std::vector<CaseResult> pipeline_results(const PipelineCase& done) {
  const std::string who = fmt::format("GPUs {}", fmt::join(done.gpus, ","));
  std::vector<double> two, three, longest;
  for (const auto& round : done.rounds) {
    two.push_back(round.two_stages);
    three.push_back(round.three_stages);
    longest.push_back(round.longest());
  }
  std::vector<CaseResult> results = {case_of("gpu", "two stages", who, std::move(two)),
                                     case_of("gpu", "three stages", who, std::move(three))};
  for (CaseResult& result : results) {
    result.bytes = done.bytes;
    set_baseline_of("gpu", "three stages", result, longest);
  }
  results.back().target = Target{.of = Target::Of::kRatio, .value = 1 / kThreeStageTarget};
  return results;
}

CaseResult pause_result(const PauseCase& done) {
  std::vector<double> paused;
  for (const Pushed& pushed : done.rounds)
    paused.push_back(static_cast<double>(pushed.paused_ns) * 1e-6);
  std::string variant = fmt::format("GPUs {}", fmt::join(done.gpus, ","));
  if (done.changed < 1) variant += fmt::format(", {:.1f} % changed", 100 * done.changed);
  CaseResult result = case_of("gpu", "paused", variant, std::move(paused));
  result.bytes = done.bytes;
  return result;
}

}  // namespace

bool targets_met(const GpuBenchResult& result) {
  return std::ranges::all_of(result.copies, &CopyCase::met) &&
         std::ranges::all_of(result.pipelines, &PipelineCase::met);
}

json to_json(const GpuBenchResult& result) {
  json gpus = json::array();
  for (const auto& gpu : result.cuda.gpus) gpus.push_back(gpu_json(gpu));
  json copies = json::array();
  for (const CopyCase& done : result.copies) copies.push_back(copy_json(done));
  json page_sizes = json::array();
  for (const PageSizeCase& done : result.page_sizes) page_sizes.push_back(page_size_json(done));
  json pipelines = json::array();
  for (const PipelineCase& done : result.pipelines) pipelines.push_back(pipeline_json(done));
  json pauses = json::array();
  for (const PauseCase& done : result.pauses) pauses.push_back(pause_json(done));
  return {{"machine", machine_json(result.machine)},
          {"emulated", result.emulated},
          {"cuda",
           {{"built_with", result.cuda.built_with},
            {"driver_cuda", result.cuda.driver_cuda},
            {"driver_release", result.cuda.driver_release},
            {"gpus", std::move(gpus)}}},
          {"copies", std::move(copies)},
          {"page_sizes", std::move(page_sizes)},
          {"pipelines", std::move(pipelines)},
          {"pauses", std::move(pauses)},
          {"notes", result.notes},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen},
          {"targets_met", targets_met(result)}};
}

std::string to_text(const GpuBenchResult& result) {
  std::string text;
  if (result.emulated)
    text += "EMULATED DRIVER: no GPU was used; the figures only show that the program runs\n";
  text += fmt::format("{}\n{}; {}\n", processor_text(result.machine), result.machine.layout,
                      result.machine.kernel);
  for (const auto& gpu : result.cuda.gpus)
    text += fmt::format("GPU {}: {}, {}, compute {}, {}, at most {}, NUMA node {}\n", gpu.gpu,
                        gpu.name, trace::format_bytes(gpu.total_bytes), device::compute_text(gpu),
                        device::pcie_text(gpu), gpu.pcie_max.empty() ? "unknown" : gpu.pcie_max,
                        device::numa_node_text(gpu));
  text += fmt::format("driver {}, CUDA {}; medians, every byte checked\n\n",
                      result.cuda.driver_release.empty() ? "unknown" : result.cuda.driver_release,
                      device::cuda_version_text(result.cuda.driver_cuda));
  if (!result.copies.empty()) text += copies_text(result.copies) + "\n";
  if (!result.page_sizes.empty()) text += page_sizes_text(result.page_sizes) + "\n";
  if (!result.pipelines.empty())
    text += pipelines_text(result.pipelines) +
            "seconds for the whole model; ratio: time of 3 stages / longest of H2D, broadcast and "
            "reload, each alone\n\n";
  if (!result.pauses.empty()) text += pauses_text(result.pauses) + "\n";
  for (const std::string& note : result.notes) text += "note: " + note + "\n";
  return text + load_notes(result.others_busy, result.stolen);
}

SuiteResult to_suite(const GpuBenchResult& result) {
  SuiteResult suite{.suite = "gpu",
                    .parameters = {{"emulated", result.emulated}},
                    .notes = result.notes,
                    .details = to_json(result)};
  if (!result.copies.empty()) suite.parameters["buffer_bytes"] = result.copies.front().bytes;
  if (!result.pipelines.empty()) suite.parameters["bytes"] = result.pipelines.front().bytes;
  if (!result.pauses.empty()) suite.parameters["paused_bytes"] = result.pauses.front().bytes;
  for (const auto& gpu : result.cuda.gpus) suite.parameters["gpus"].push_back(gpu.name);
  for (const CopyCase& done : result.copies) suite.cases.push_back(copy_result(done));
  for (const PageSizeCase& done : result.page_sizes)
    for (CaseResult& one : page_size_results(done)) suite.cases.push_back(std::move(one));
  for (const PipelineCase& done : result.pipelines)
    for (CaseResult& one : pipeline_results(done)) suite.cases.push_back(std::move(one));
  for (const PauseCase& done : result.pauses) suite.cases.push_back(pause_result(done));
  if (result.emulated)
    suite.notes.insert(suite.notes.begin(),
                       "EMULATED DRIVER: no GPU was used; the figures have no meaning");
  for (std::string& sentence : load_sentences(result.others_busy, result.stolen))
    suite.notes.push_back(std::move(sentence));
  return suite;
}

}  // namespace wsync::bench
