#include "bench/harness/catalogue.h"

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
    CaseText{"copies",
             "Times that a byte is copied on its way from the trainer's source to an engine's own "
             "memory, as the processes count them",
             "times", false, ""},
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

constexpr std::string_view kBareUnix = "a bare Unix socket";
constexpr std::string_view kBareZmq = "bare ZeroMQ, DEALER and ROUTER";
constexpr std::string_view kSameMemcpy = "memcpy of the same bytes";
constexpr std::string_view kStreaming = "streaming copy, 1 thread";
constexpr std::string_view kBareTcp = "loopback TCP, one bare connection";
constexpr std::string_view kTextRate = "MiB/s";

constexpr std::array kControlCases{
    CaseText{"round trip, bare Unix socket",
             "A small question and its answer between two threads that wait in recv()", "us", false,
             ""},
    CaseText{"round trip, engine link",
             "The same as messages between an engine's link and a sidecar's loop", "us", false,
             kBareUnix},
    CaseText{"round trip, bare ZeroMQ", "The same between a DEALER and a ROUTER that wait in recv",
             "us", false, kBareUnix},
    CaseText{"round trip, port",
             "The same as messages between the loops of a command and a coordinator", "us", false,
             kBareZmq},
    CaseText{"one way, bare Unix socket", "Small messages without waiting for answers", "1/s", true,
             ""},
    CaseText{"one way, engine link", "The same from an engine's link to a sidecar's loop", "1/s",
             true, kBareUnix},
    CaseText{"one way, bare ZeroMQ",
             "The same from a DEALER to a ROUTER; many go in one call of the system", "1/s", true,
             kBareUnix},
    CaseText{"one way, port", "The same from a command's loop to a coordinator's", "1/s", true,
             kBareZmq},
    CaseText{"encode", "A message is made into bytes", "ns", false, ""},
    CaseText{"encode rate", "The same in bytes of the message", kTextRate, true, kSameMemcpy},
    CaseText{"decode", "Bytes are checked and made into a message", "ns", false, ""},
    CaseText{"decode rate", "The same in bytes of the message", kTextRate, true, kSameMemcpy},
    CaseText{"memcpy of a message", "The bytes of the message are copied", kTextRate, true, ""},
    CaseText{"update round",
             "Time that a coordinator's decisions take in a whole update, without any waiting",
             "us", false, ""},
    CaseText{"update round, of each replica", "The same by the number of replicas", "us", false,
             "the fewest replicas of the run, each"},
};

constexpr std::array kTransportCases{
    CaseText{"streaming copy", "Private memory is copied past the caches, by one thread", kRate,
             true, ""},
    CaseText{"CPU of streaming copy", "Processor time of it", "s/GB", false, ""},
    CaseText{"map filled", "A memfd that is full is mapped, by one thread", kRate, true, ""},
    CaseText{"loopback TCP",
             "From one thread's memory to another's over one TCP connection, without any check",
             kRate, true, ""},
    CaseText{"CPU of loopback TCP", "Processor time of both ends", "s/GB", false, ""},
    CaseText{"memfd, handed over",
             "From a sidecar's request until it has a version's arena mapped, by two threads; "
             "nothing is copied",
             kRate, true, "map filled, 1 thread"},
    CaseText{"memfd, handed over and copied",
             "The same, and then copied into private memory by one thread, as by an engine", kRate,
             true, kStreaming},
    CaseText{"CPU of memfd, handed over and copied", "Processor time of both ends", "s/GB", false,
             kStreaming},
    CaseText{"TCP streams",
             "From a sidecar's request until a version is in its memory, every bucket's digest "
             "taken and checked",
             kRate, true, kBareTcp},
    CaseText{"CPU of TCP streams", "Processor time of both ends", "s/GB", false, kBareTcp},
    CaseText{"TCP relay",
             "The same through a sidecar that hands each bucket on: two hops, both on this machine",
             kRate, true, kBareTcp},
    CaseText{"CPU of TCP relay", "Processor time of all three", "s/GB", false, kBareTcp},
};

constexpr std::array kCodecsCases{
    CaseText{"memcpy", "Private memory is copied with memcpy", kRate, true, ""},
    CaseText{"streaming copy", "The same past the caches, as engines copy", kRate, true, kMemcpy},
    CaseText{"XXH3", "XXH3-128 of all bytes at once; reads only", kRate, true, kMemcpy},
    CaseText{"content digest",
             "XXH3-128 of each MiB and of those of each tensor, as versions are named; reads only",
             kRate, true, kMemcpy},
    CaseText{"checksum", "The checksum that engines compare; reads only", kRate, true, kMemcpy},
    CaseText{"copy with checksum", "An engine's copy, which takes the checksum in the same pass",
             kRate, true, kStreaming},
    CaseText{"piece digest", "The digest that GPUs take, computed by the host; reads only", kRate,
             true, kMemcpy},
    CaseText{"bucket frames",
             "The bytes of a TCP stream are taken apart into buckets and digested on the way",
             kRate, true, kMemcpy},
    CaseText{"float32 to bfloat16",
             "A trainer's weights are rounded, GiB of float32; writes half of what memcpy does",
             kRate, true, kMemcpy},
    CaseText{"bfloat16 to float32",
             "Weights are widened, GiB of float32; reads half of what memcpy does", kRate, true,
             kMemcpy},
    CaseText{"memcpy of a text", "The bytes of a header, an index or a layout are copied",
             kTextRate, true, ""},
    CaseText{"read safetensors header", "The JSON of a model's header is parsed and checked",
             kTextRate, true, kSameMemcpy},
    CaseText{"read checkpoint index", "The JSON of a model's index is parsed and checked",
             kTextRate, true, kSameMemcpy},
    CaseText{"write checkpoint index", "The index is made into JSON", kTextRate, true, kSameMemcpy},
    CaseText{"encode layout", "A model's layout is made into bytes, for an Announce", kTextRate,
             true, kSameMemcpy},
    CaseText{"decode layout", "The same read, checked and digested", kTextRate, true, kSameMemcpy},
    CaseText{"frame header there and back", "The header of a bucket is decoded and encoded",
             kTextRate, true, kSameMemcpy},
};

constexpr std::array kPeersCases{
    CaseText{"floor", "The model is copied once into the memory of each of N processes, at once",
             "s", false, ""},
    CaseText{"verified copies",
             "A trainer's model comes into the memory of N engines, and every byte is verified",
             "s", false, "floor"},
    CaseText{"staged", "The part of wsync's update in which engines serve", "s", false, ""},
    CaseText{"paused", "The part of wsync's update in which engines stand still", "s", false, ""},
};

constexpr std::array kOverheadCases{
    CaseText{"scraped and traced",
             "Processor time of an update that is scraped once a second and traced into a file by "
             "`wsync push --trace`",
             "ms", false, "the same fleet's update while nobody asks"},
    CaseText{"spans kept, pages served",
             "Processor time of an update in a fleet as it is by default, while nobody asks", "ms",
             false, "another fleet's update, which makes no spans and serves no pages"},
    CaseText{"making spans", "The spans of an update are made and kept once more", "ms", false, ""},
    CaseText{"push that traces", "Processor time of `wsync push --trace` itself", "ms", false,
             "`wsync push` without --trace"},
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
    SuiteText{"gpu", "wsync bench gpu",
              "how close do copies, digests and updates of GPUs come to the driver's plain calls?",
              kGpuCases},
    SuiteText{"control", "wsync bench control",
              "what do messages cost beside bare sockets, and a coordinator's decisions as the "
              "replicas grow?",
              kControlCases},
    SuiteText{"transport", "wsync bench transport",
              "how close do memfd and TCP streams come to what moves the same bytes without them?",
              kTransportCases},
    SuiteText{"codecs", "wsync bench codecs",
              "what do the digests, conversions and parsers on the way of weights cost beside a "
              "copy?",
              kCodecsCases},
    SuiteText{
        "peers", "wsync bench peers",
        "how long does a model take from a trainer's memory to engines' by wsync, and by what "
        "else is used for it?",
        kPeersCases},
    SuiteText{"overhead", "wsync bench overhead",
              "what do spans, pages of metrics and traces cost an update in processor time?",
              kOverheadCases},
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
