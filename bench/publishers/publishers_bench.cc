#include "bench/publishers/publishers_bench.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "bench/harness/memory.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::uint64_t kFleets = 2;
constexpr const char* kC = "c";

unsigned warm_ups(unsigned versions_held) { return versions_held + 2; }

class PublishersRun {
 public:
  PublishersRun(const PublishersBenchOptions& options, const Interrupt& interrupt,
                const OnProgress& on_progress)
      : options_(options), interrupt_(interrupt), on_progress_(on_progress) {}

  [[nodiscard]] Result<PublishersBenchResult> run() {
    result_ = {.machine = this_machine(),
               .bytes = options_.bytes,
               .engines = options_.engines,
               .adopt = options_.adopt,
               .tcp = options_.tcp,
               .interpreter = options_.interpreter};
    result_.others_busy = WSYNC_TRY(busy_with_others(interrupt_));
    const auto source = WSYNC_TRY(make_source(options_.directory, {options_.checkpoint}));
    result_.bytes = source.bytes;
    result_.tensors = source.tensors.size();
    for (const SourceTensor& tensor : source.tensors)
      result_.largest_tensor_bytes = std::max(result_.largest_tensor_bytes, tensor.bytes);
    result_.rows.push_back({.kind = kC, .rounds = {}});
    for (const std::string& kind : options_.interpreter.kinds)
      result_.rows.push_back({.kind = kind, .rounds = {}});
    children_ = WSYNC_TRY(bench_children(options_.directory));
    c_ = WSYNC_TRY(start("c", options_.executable, {"bench", "publisher", "--job"}, source));
    python_ = WSYNC_TRY(start("py", options_.interpreter.executable,
                              {options_.interpreter.script, "publish"}, source));
    std::filesystem::remove(source.models.front());
    const unsigned before = warm_ups(c_->versions_held());
    total_ = before + options_.rounds;
    for (unsigned i = 0; i < before; ++i) {
      (void)WSYNC_TRY(round(i % 2 == 1));
      step("warming up");
    }
    CpuLoad load;
    for (unsigned i = 0; i < options_.rounds; ++i) {
      auto samples = WSYNC_TRY(round(i % 2 == 1));
      for (std::size_t r = 0; r < samples.size(); ++r)
        result_.rows[r].rounds.push_back(std::move(samples[r]));
      step("measuring");
    }
    result_.stolen = load.since_last().stolen;
    WSYNC_TRY(c_->verify());
    WSYNC_TRY(python_->verify());
    return std::move(result_);
  }

 private:
  void step(std::string_view what) { on_progress_(what, ++done_, total_); }

  Result<std::unique_ptr<PublishingFleet>> start(const std::string& name,
                                                 const std::string& executable,
                                                 std::vector<std::string> command,
                                                 const ModelSource& source) {
    const std::string directory = fmt::format("{}/{}", options_.directory, name);
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    return PublishingFleet::start({.fleet = {.executable = options_.executable,
                                             .directory = directory,
                                             .name = name,
                                             .checkpoint = options_.checkpoint,
                                             .engines = options_.engines,
                                             .adopt = options_.adopt,
                                             .gpus = {},
                                             .tcp = options_.tcp,
                                             .has_trainer = false},
                                   .executable = executable,
                                   .command = std::move(command),
                                   .kinds = options_.interpreter.kinds},
                                  source, *children_);
  }

  // One publish of each kind. Returns them in the order of the rows.
  Result<std::vector<PublishSample>> round(bool is_reversed) {
    std::vector<PublishSample> samples(result_.rows.size());
    ++stamp_;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::size_t at = is_reversed ? samples.size() - 1 - i : i;
      const std::string& kind = result_.rows[at].kind;
      auto sample = (kind == kC ? c_ : python_)->publish(kind, stamp_);
      if (!sample) return fail(sample.error().with_context(kind));
      samples[at] = std::move(*sample);
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      samples[i].bytes = result_.bytes;
      if (samples[i].digest != samples.front().digest)
        return fail(ErrorCode::kDigestMismatch,
                    fmt::format("{} published the digest {}, C that of the same bytes {}",
                                result_.rows[i].kind, samples[i].digest, samples.front().digest));
    }
    return samples;
  }

  const PublishersBenchOptions& options_;
  const Interrupt& interrupt_;
  const OnProgress& on_progress_;
  PublishersBenchResult result_;
  std::unique_ptr<cli::ChildProcesses> children_;  // outlives the fleets' processes
  std::unique_ptr<PublishingFleet> c_, python_;
  std::uint64_t stamp_ = 0;
  unsigned done_ = 0;
  unsigned total_ = 0;
};

}  // namespace

std::vector<double> PublisherRow::column(FigureOf of) const {
  std::vector<double> values;
  for (const PublishSample& sample : rounds) values.push_back(of(sample));
  return values;
}

Spread PublisherRow::spread(FigureOf of) const { return spread_of(column(of)); }

Spread PublishersBenchResult::ratio(const PublisherRow& row, FigureOf of) const {
  std::vector<double> ratios = row.column(of);
  const std::vector<double> base = rows.front().column(of);
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = base[i] > 0 ? ratios[i] / base[i] : 0;
  return spread_of(ratios);
}

bool PublishersBenchResult::met(const PublisherRow& row) const {
  return ratio(row, [](const PublishSample& s) {
           return static_cast<double>(s.snapshot_ns);
         }).median <= kPythonRatioTarget;
}

Result<> check_publishers_bench(const PublishersBenchOptions& options, std::uint64_t bytes) {
  if (options.engines == 0 || options.rounds == 0)
    return fail(ErrorCode::kInvalidInput, "expected at least one engine and one round");
  // The weights, the snapshots, the engines' own memory and, over TCP, the sidecar's arenas. One
  // more copy is the file from which both trainers read.
  const std::uint64_t held = options.adopt ? 3 : 2;
  const std::uint64_t fleet =
      1 + held + 1 + (options.adopt ? 0 : options.engines) + (options.tcp ? held : 0);
  return require_copies(
      kFleets * fleet + 1, bytes,
      fmt::format("for two fleets with {} each", counted(options.engines, "engine")));
}

Result<PublishersBenchResult> run_publishers_bench(const PublishersBenchOptions& options,
                                                   const Interrupt& interrupt,
                                                   const OnProgress& on_progress) {
  WSYNC_TRY(check_publishers_bench(options, options.bytes));
  PublishersRun run(options, interrupt, on_progress);
  try {
    return run.run();
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("an answer has an unexpected format: {}", error.what()));
  }
}

}  // namespace wsync::bench
