#include "bench/measure/catalogue.h"

#include <algorithm>
#include <array>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr std::string_view kMemcpy = "memcpy, 1 thread";
constexpr std::string_view kRate = "GiB/s";

constexpr std::array kBaselineCases{
    CaseText{"memcpy", "Private memory is copied with memcpy, in equal parts by so many threads",
             kRate, true, kMemcpy},
    CaseText{"streaming copy",
             "The same with the best non-temporal stores of this processor, as engines copy", kRate,
             true, kMemcpy},
    CaseText{"first touch, private", "One byte of each page of new private memory is written",
             kRate, true, kMemcpy},
    CaseText{"first touch, private huge", "The same with huge pages asked for", kRate, true,
             kMemcpy},
    CaseText{"first touch, shared", "One byte of each page of a new memfd is written", kRate, true,
             kMemcpy},
    CaseText{"first touch, shared huge", "The same with huge pages asked for", kRate, true,
             kMemcpy},
    CaseText{"map filled", "A memfd that is full is mapped, with all entries of the page table",
             kRate, true, kMemcpy},
    CaseText{"XXH3", "XXH3-128 of private memory, as digests are taken, by one thread", kRate, true,
             kMemcpy},
    CaseText{"loopback TCP", "From one thread's memory to another's over one TCP connection", kRate,
             true, kMemcpy},
    CaseText{"Unix socket", "The same over a Unix stream socket", kRate, true, kMemcpy},
    CaseText{"ZeroMQ ipc", "The same over ZeroMQ, PUSH to PULL over ipc, messages of 1 MiB", kRate,
             true, kMemcpy},
    CaseText{"disk read", "A file that is not in the page cache is read into private memory", kRate,
             true, kMemcpy},
    CaseText{"tmpfs read", "A file in memory (memfd) is read into private memory with read()",
             kRate, true, kMemcpy},
    CaseText{"H2D", "Pinned host memory of the driver's own is copied to a GPU", kRate, true,
             kMemcpy},
    CaseText{"D2D", "Memory of a GPU is copied within it", kRate, true, kMemcpy},
    CaseText{"GPU read", "Memory of a GPU is read by a kernel that only reads", kRate, true,
             kMemcpy},
    CaseText{"broadcast", "One GPU's memory is broadcast to the others, which digest it", kRate,
             true, kMemcpy},
};

constexpr std::array kSyncCases{
    CaseText{"paused",
             "Time that engines stand still for an update: last rank's PAUSED to RESUME, longest "
             "of the replicas",
             "ms", false, "streaming copy of the same bytes in the same processes"},
    CaseText{"load", "The part of the pause from LOAD to the last rank's LOADED", "ms", false,
             "streaming copy of the same bytes in the same processes"},
    CaseText{"staged", "Time in which a version is brought to the sidecar, while engines serve",
             "ms", false, ""},
    CaseText{"CPU",
             "Processor time of trainer, sidecar and engines for one update, by the bytes that "
             "engines loaded",
             "s/GB", false, ""},
    CaseText{
        "checked copy",
        "The streaming copy of the baseline with checksums in the same pass: what verification "
        "costs",
        "ms", false, "streaming copy of the same bytes in the same processes"},
};

constexpr std::array kScheduleCases{
    CaseText{"step, overlap", "A training step over an emulated link, communication overlapped",
             "ms", false, "step, no link"},
    CaseText{"step, no overlap", "The same step, interleaved 1F1B, nothing overlapped", "ms", false,
             "step, no link"},
    CaseText{"step, no link", "The same step without overlap where messages take no time", "ms",
             false, "what the simulator predicts"},
    CaseText{"speed-up", "Time of a step without overlap by that of the step with it next to it",
             "times", true, "what the simulator predicts"},
};

constexpr std::array kRecoveryCases{
    CaseText{"loss seen", "From SIGKILL of a rank until the launcher tells the loss", "ms", false,
             ""},
    CaseText{"all can go on", "From SIGKILL until all ranks have agreed on the step to go on with",
             "ms", false, "start from a checkpoint"},
    CaseText{"first step has ended", "From SIGKILL to the end of the first step after it", "ms",
             false, "start from a checkpoint"},
};

constexpr std::array kTornCases{
    CaseText{"torn steps", "Forward steps that were computed with two versions; there may be none",
             "steps", false, ""},
    CaseText{"steps", "Forward steps of the replica while its weights change", "1/s", true, ""},
    CaseText{"paused under load", "Time that the replica stands still for a switch", "ms", false,
             ""},
};

constexpr std::array kGpuCases{
    CaseText{"H2D", "Host memory that is staged is copied to the GPU", "GB/s", true,
             "cuMemcpyHtoDAsync, pinned by the driver"},
    CaseText{"reload", "An update's pieces are copied within the GPU, digests fused", "GB/s", true,
             "cuMemcpyAsync"},
    CaseText{"reload in another process", "The same by an engine that has mapped the buffer",
             "GB/s", true, "cuMemcpyAsync"},
    CaseText{"digest", "Digests of an update's pieces on the GPU", "GB/s", true,
             "a kernel that only reads"},
    CaseText{"two stages", "A whole update of a group in the two-stage form", "s", false,
             "longest stage alone"},
    CaseText{"three stages", "A whole update of a group in the three-stage form", "s", false,
             "longest stage alone"},
    CaseText{"paused", "Time that engines on GPUs stand still for an update", "ms", false, ""},
};

constexpr std::array kPipelineCases{
    CaseText{"H2D alone", "A model's buckets are copied into separate host devices, all at once",
             "ms", false, ""},
    CaseText{"broadcasts alone", "Every bucket is broadcast to all devices, one after the other",
             "ms", false, ""},
    CaseText{"reload alone", "Engines copy every bucket out of its buffer, all at once", "ms",
             false, ""},
    CaseText{"two stages", "A whole update in the two-stage form", "ms", false,
             "what the simulation predicts"},
    CaseText{"three stages", "A whole update in the three-stage form", "ms", false,
             "what the simulation predicts"},
};

constexpr std::array kScaleCases{
    CaseText{"published update", "checkpoint-engine's update on a published set-up, simulated", "s",
             false, "its published time"},
    CaseText{"checkpoint-engine", "Its update, in which engines stand still, simulated", "s", false,
             "what the links allow"},
    CaseText{"staged", "wsync brings a version to all hosts while engines serve, simulated", "s",
             false, "what the links allow"},
    CaseText{"paused", "Engines stand still while wsync switches, simulated", "s", false,
             "what the links allow"},
};

constexpr std::array kSuites{
    SuiteText{"baseline", "wsync bench baseline",
              "what can this machine's memory, links and files do at all?", kBaselineCases},
    SuiteText{"sync", "wsync bench sync",
              "how long do engines stand still for an update, and how close is that to the best "
              "that this machine can do?",
              kSyncCases},
    SuiteText{"pipeline", "wsync bench pipeline",
              "how long does the weight pipeline take, and does the simulation know it?",
              kPipelineCases},
    SuiteText{"scale", "wsync bench scale",
              "how long do updates take on clusters of up to 10,000 GPUs, and which link is waited "
              "for?",
              kScaleCases},
    SuiteText{"schedule", "wsync bench schedule",
              "what is it worth to overlap communication with computation in a training step?",
              kScheduleCases},
    SuiteText{"recovery", "wsync bench recovery",
              "a rank of a training run is killed: how soon does it go on, with the same weights?",
              kRecoveryCases},
    SuiteText{"torn", "wsync bench recovery --torn",
              "is a token ever computed with two versions, or by ranks that have different ones?",
              kTornCases},
    SuiteText{"gpu", "wsync bench gpu",
              "how close do copies, digests and updates of GPUs come to the driver's plain calls?",
              kGpuCases},
};

const CaseText& text_of(std::string_view suite, std::string_view name) {
  const auto found = std::ranges::find(kSuites, suite, &SuiteText::name);
  WSYNC_CHECK(found != kSuites.end(), "the suite is in the catalogue");
  const auto text = std::ranges::find(found->cases, name, &CaseText::name);
  WSYNC_CHECK(text != found->cases.end(), "the case is in the catalogue");
  return *text;
}

}  // namespace

std::span<const SuiteText> catalogue() { return kSuites; }

CaseResult case_of(std::string_view suite, std::string_view name, std::string_view variant,
                   std::vector<double> samples) {
  const CaseText& text = text_of(suite, name);
  CaseResult result;
  result.name = variant.empty() ? std::string(name) : fmt::format("{}, {}", name, variant);
  result.what = text.what;
  result.unit = text.unit;
  result.higher_is_better = text.higher_is_better;
  result.samples = std::move(samples);
  return result;
}

void set_baseline_of(std::string_view suite, std::string_view name, CaseResult& result,
                     std::vector<double> samples) {
  set_baseline(result, std::string(text_of(suite, name).baseline), std::move(samples));
}

}  // namespace wsync::bench
