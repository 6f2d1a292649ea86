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
    CaseText{"memcpy",
             "Private memory is copied with memcpy; the given number of threads copy equal parts",
             kRate, true, kMemcpy},
    CaseText{"streaming copy",
             "Private memory is copied with the widest non-temporal stores of this processor, as "
             "engines do",
             kRate, true, kMemcpy},
    CaseText{"first touch, private", "One byte of each page of new private memory is written",
             kRate, true, kMemcpy},
    CaseText{"first touch, private huge", "The same with huge pages requested", kRate, true,
             kMemcpy},
    CaseText{"first touch, shared", "One byte of each page of a new memfd is written", kRate, true,
             kMemcpy},
    CaseText{"first touch, shared huge", "The same with huge pages requested", kRate, true,
             kMemcpy},
    CaseText{"map filled", "A filled memfd is mapped, with all entries of the page table", kRate,
             true, kMemcpy},
    CaseText{"XXH3", "XXH3-128 of private memory by one thread, as for content digests", kRate,
             true, kMemcpy},
    CaseText{"loopback TCP", "From one thread's memory to another's over one TCP connection", kRate,
             true, kMemcpy},
    CaseText{"Unix socket", "From one thread's memory to another's over a Unix stream socket",
             kRate, true, kMemcpy},
    CaseText{"ZeroMQ ipc",
             "From one thread's memory to another's over ZeroMQ, PUSH to PULL over ipc, messages "
             "of 1 MiB",
             kRate, true, kMemcpy},
    CaseText{"disk read", "A file that is not in the page cache is read into private memory", kRate,
             true, kMemcpy},
    CaseText{"tmpfs read", "A file in memory (memfd) is read into private memory with read()",
             kRate, true, kMemcpy},
    CaseText{"H2D", "Host memory that the driver has allocated and pinned is copied to a GPU",
             kRate, true, kMemcpy},
    CaseText{"D2D", "Memory of a GPU is copied within the same GPU", kRate, true, kMemcpy},
    CaseText{"GPU read", "Memory of a GPU is read by a kernel that only reads", kRate, true,
             kMemcpy},
    CaseText{"broadcast",
             "Memory of one GPU is broadcast to the other GPUs, which compute its digest", kRate,
             true, kMemcpy},
};

constexpr std::array kSyncCases{
    CaseText{"paused",
             "Pause of engines for an update: from the last rank's PAUSED to RESUME, longest of "
             "the replicas",
             "ms", false, "streaming copy of the same bytes in the same processes"},
    CaseText{"load", "Part of the pause from LOAD to the last rank's LOADED", "ms", false,
             "streaming copy of the same bytes in the same processes"},
    CaseText{"staged", "Time to stage a version at the sidecar while engines serve", "ms", false,
             ""},
    CaseText{"CPU",
             "Processor time of trainer, sidecar and engines for one update, divided by the bytes "
             "that engines loaded",
             "s/GB", false, ""},
    CaseText{"copies",
             "Number of copies of a byte between the trainer's source and an engine's memory, as "
             "the processes count them",
             "times", false, ""},
    CaseText{"checked copy",
             "The streaming copy of the baseline with checksums in the same pass: shows the cost "
             "of verification",
             "ms", false, "streaming copy of the same bytes in the same processes"},
    CaseText{"publish",
             "With --python: time of a publish until the weights may change again, from C, from "
             "NumPy and from torch",
             "ms", false, "publish of the same bytes from C"},
    CaseText{"publish until it is served",
             "With --python: time from a publish until the engines serve it", "ms", false,
             "publish of the same bytes from C"},
    CaseText{"publish CPU",
             "With --python: processor time of the publishing process until the engines serve it",
             "ms", false, "publish of the same bytes from C"},
    CaseText{"publish copies",
             "With --python: number of copies of a byte in the publishing process, as the library "
             "counts them",
             "times", false, ""},
};

constexpr std::array kScheduleCases{
    CaseText{"step, overlap",
             "A training step over an emulated link, with overlapped communication", "ms", false,
             "step, no link"},
    CaseText{"step, no overlap", "The same step as interleaved 1F1B, without overlap", "ms", false,
             "step, no link"},
    CaseText{"step, no link",
             "The same step without overlap and without a link, so that messages take no time",
             "ms", false, "what the simulator predicts"},
    CaseText{
        "speed-up",
        "Time of a step without overlap, divided by the time of the neighbouring step with overlap",
        "times", true, "what the simulator predicts"},
};

constexpr std::array kGpuCases{
    CaseText{"H2D", "Staged host memory is copied to the GPU", "GB/s", true,
             "cuMemcpyHtoDAsync, pinned by the driver"},
    CaseText{"publish",
             "A trainer's snapshot: weights on the GPU are copied to the arena, and summed", "GB/s",
             true, "cuMemcpyDtoHAsync, pinned by the driver"},
    CaseText{"publish of F32 as BF16",
             "The same of F32 that the GPU converts before they travel; bytes are those of the F32",
             "GB/s", true, "cuMemcpyDtoHAsync of the F32, pinned by the driver"},
    CaseText{"reload",
             "The pieces of an update are copied within the GPU; the same kernel sums them", "GB/s",
             true, "cuMemcpyAsync"},
    CaseText{"reload in another process",
             "An engine in another process, which has mapped the buffer, copies the pieces", "GB/s",
             true, "cuMemcpyAsync"},
    CaseText{"sum", "The GPU sums the pieces of an update", "GB/s", true,
             "a kernel that only reads"},
    CaseText{"registration, pages", "An arena in pages of this kind is registered with the GPU",
             "GB/s", true, ""},
    CaseText{"H2D, pages", "The same arena is copied to the GPU", "GB/s", true, ""},
    CaseText{"two stages", "A whole update of a group in the two-stage form", "s", false,
             "longest stage alone"},
    CaseText{"three stages", "A whole update of a group in the three-stage form", "s", false,
             "longest stage alone"},
    CaseText{"paused", "Pause of engines on GPUs for an update", "ms", false, ""},
};

constexpr std::array kPipelineCases{
    CaseText{"H2D alone",
             "The buckets of a model are copied to separate host devices, all devices concurrently",
             "ms", false, ""},
    CaseText{"broadcasts alone", "Every bucket is broadcast to all devices, one after the other",
             "ms", false, ""},
    CaseText{"reload alone",
             "Engines copy every bucket out of its buffer, all engines concurrently", "ms", false,
             ""},
    CaseText{"two stages", "A whole update in the two-stage form", "ms", false,
             "what the simulation predicts"},
    CaseText{"three stages", "A whole update in the three-stage form", "ms", false,
             "what the simulation predicts"},
};

constexpr std::array kScaleCases{
    CaseText{"published update",
             "Update of checkpoint-engine in a published configuration, simulated", "s", false,
             "its published time"},
    CaseText{"checkpoint-engine",
             "Update of checkpoint-engine, during which engines are paused, simulated", "s", false,
             "what the links allow"},
    CaseText{"staged", "wsync stages a version on all hosts while engines serve, simulated", "s",
             false, "what the links allow"},
    CaseText{"paused", "Pause of engines during wsync's switch, simulated", "s", false,
             "what the links allow"},
};

constexpr std::string_view kBareUnix = "a bare Unix socket";
constexpr std::string_view kBareZmq = "bare ZeroMQ, DEALER and ROUTER";
constexpr std::string_view kSameMemcpy = "memcpy of the same bytes";
constexpr std::string_view kStreaming = "streaming copy, 1 thread";
constexpr std::string_view kBareTcp = "loopback TCP, one bare connection";
constexpr std::string_view kPlainStreams = "TCP streams of the same shape";
constexpr std::string_view kFewestSidecars = "the fewest sidecars of the run, each";
constexpr std::string_view kWithoutKeys = "the same fleet without keys";
constexpr std::string_view kTextRate = "MiB/s";

constexpr std::array kControlCases{
    CaseText{"round trip, bare Unix socket",
             "A small request and its reply between two threads that wait in recv()", "us", false,
             ""},
    CaseText{
        "round trip, engine link",
        "The same request and reply as messages between an engine link and the loop of a sidecar",
        "us", false, kBareUnix},
    CaseText{"round trip, bare ZeroMQ",
             "The same request and reply between a DEALER and a ROUTER socket that wait in recv",
             "us", false, kBareUnix},
    CaseText{
        "round trip, port",
        "The same request and reply as messages between the loops of a command and a coordinator",
        "us", false, kBareZmq},
    CaseText{"one way, bare Unix socket", "Small messages are sent without waiting for replies",
             "1/s", true, ""},
    CaseText{"one way, engine link",
             "Small messages are sent from an engine link to the loop of a sidecar", "1/s", true,
             kBareUnix},
    CaseText{"one way, bare ZeroMQ",
             "Small messages are sent from a DEALER to a ROUTER socket; ZeroMQ sends many of them "
             "in one system call",
             "1/s", true, kBareUnix},
    CaseText{"one way, port",
             "Small messages are sent from the loop of a command to the loop of a coordinator",
             "1/s", true, kBareZmq},
    CaseText{"encode", "A message is encoded", "ns", false, ""},
    CaseText{"encode rate", "The same, in bytes of the message", kTextRate, true, kSameMemcpy},
    CaseText{"decode", "A message is checked and decoded", "ns", false, ""},
    CaseText{"decode rate", "The same, in bytes of the message", kTextRate, true, kSameMemcpy},
    CaseText{"memcpy of a message", "The bytes of the message are copied", kTextRate, true, ""},
    CaseText{"update round",
             "Time of a coordinator's decisions during a whole update, without waiting", "us",
             false, ""},
    CaseText{"update round, of each replica",
             "Time of a coordinator's decisions during a whole update, divided by the number of "
             "replicas",
             "us", false, "the fewest replicas of the run, each"},
    CaseText{
        "fleet, announce to decide",
        "Time from the first Announce to the last Decide at sidecars that answer at once, over "
        "real connections (--sidecars)",
        "s", false, ""},
    CaseText{
        "fleet, announce to switched",
        "Time from the first Announce to the reply of the push, when every replica has switched",
        "s", false, ""},
    CaseText{"fleet, processor time", "Processor time of the coordinator's process during a push",
             "s", false, ""},
    CaseText{"fleet, processor time of each message",
             "The same, divided by the messages of the round in both directions", "us", false,
             kFewestSidecars},
    CaseText{"fleet, idle",
             "Share of one core that the coordinator's process uses while nothing is published",
             "%", false, ""},
    CaseText{"fleet, memory", "Maximum resident memory of the coordinator's process", "MiB", false,
             ""},
    CaseText{
        "fleet with keys, announce to decide",
        "As without keys, for sidecars that connect by TCP, each with a key of its own (--keys)",
        "s", false, kWithoutKeys},
    CaseText{"fleet with keys, announce to switched", "As without keys", "s", false, kWithoutKeys},
    CaseText{"fleet with keys, processor time", "As without keys", "s", false, kWithoutKeys},
    CaseText{"fleet with keys, processor time of each message", "As without keys", "us", false,
             kWithoutKeys},
    CaseText{"fleet with keys, idle", "As without keys", "%", false, kWithoutKeys},
    CaseText{"fleet with keys, memory", "As without keys", "MiB", false, kWithoutKeys},
};

constexpr std::array kTransportCases{
    CaseText{"streaming copy",
             "One thread copies private memory with non-temporal stores, which bypass the caches",
             kRate, true, ""},
    CaseText{"CPU of streaming copy", "Processor time of the streaming copy", "s/GB", false, ""},
    CaseText{"map filled", "One thread maps a filled memfd", kRate, true, ""},
    CaseText{"loopback TCP",
             "From one thread's memory to another's over one TCP connection, without checks", kRate,
             true, ""},
    CaseText{"CPU of loopback TCP", "Processor time of both ends", "s/GB", false, ""},
    CaseText{"memfd, handed over",
             "From a sidecar's request until it has a version's arena mapped, by two threads; "
             "nothing is copied",
             kRate, true, "map filled, 1 thread"},
    CaseText{"memfd, handed over and copied",
             "The same; then one thread copies the version into private memory, as an engine does",
             kRate, true, kStreaming},
    CaseText{"CPU of memfd, handed over and copied", "Processor time of both ends", "s/GB", false,
             kStreaming},
    CaseText{"TCP streams",
             "From a sidecar's request until a version is in its memory; the digest of every "
             "bucket is computed and checked",
             kRate, true, kBareTcp},
    CaseText{"CPU of TCP streams", "Processor time of both ends", "s/GB", false, kBareTcp},
    CaseText{"TLS streams", "The same over encrypted connections, as between hosts", kRate, true,
             kPlainStreams},
    CaseText{"CPU of TLS streams", "Processor time of both ends", "s/GB", false, kPlainStreams},
    CaseText{"TCP relay",
             "The same through a sidecar that forwards each bucket: two hops, both on this machine",
             kRate, true, kBareTcp},
    CaseText{"CPU of TCP relay", "Processor time of the source, the relay and the receiver", "s/GB",
             false, kBareTcp},
};

constexpr std::array kCodecsCases{
    CaseText{"memcpy", "Private memory is copied with memcpy", kRate, true, ""},
    CaseText{
        "streaming copy",
        "Private memory is copied with non-temporal stores, which bypass the caches, as engines do",
        kRate, true, kMemcpy},
    CaseText{"XXH3", "XXH3-128 of all bytes at once; reads only", kRate, true, kMemcpy},
    CaseText{"content digest",
             "XXH3-128 of each MiB, combined for each tensor and for the version; reads only",
             kRate, true, kMemcpy},
    CaseText{"sum of words", "The sum by which everybody compares bytes; reads only", kRate, true,
             kMemcpy},
    CaseText{"copy with sum of words",
             "The copy of a snapshot and of an engine, which computes the sum in the same pass",
             kRate, true, kStreaming},
    CaseText{
        "bucket frames",
        "The bytes of a TCP stream are divided into buckets, and the digest of each is computed",
        kRate, true, kMemcpy},
    CaseText{"float32 to bfloat16",
             "float32 weights of a trainer are rounded, in GiB of float32; writes half as many "
             "bytes as memcpy",
             kRate, true, kMemcpy},
    CaseText{
        "bfloat16 to float32",
        "bfloat16 weights are converted, in GiB of float32; reads half as many bytes as memcpy",
        kRate, true, kMemcpy},
    CaseText{
        "make patch",
        "Weights of which a share has changed at random are compared with those before, and the "
        "blocks of a patch are made; reads two models",
        kRate, true, kStreaming},
    CaseText{"apply patch",
             "The patch is checked and written into the weights before, with the sums of what it "
             "changes before and after; in GiB of the model",
             kRate, true, kStreaming},
    CaseText{"memcpy of a text", "The bytes of a header, an index or a layout are copied",
             kTextRate, true, ""},
    CaseText{"read safetensors header", "The JSON of a model's header is parsed and checked",
             kTextRate, true, kSameMemcpy},
    CaseText{"read checkpoint index", "The JSON of a model's index is parsed and checked",
             kTextRate, true, kSameMemcpy},
    CaseText{"write checkpoint index", "The JSON of a model's index is written", kTextRate, true,
             kSameMemcpy},
    CaseText{"encode layout", "The layout of a model is encoded for an Announce message", kTextRate,
             true, kSameMemcpy},
    CaseText{"decode layout", "The layout is decoded and checked, and its digest is computed",
             kTextRate, true, kSameMemcpy},
    CaseText{"frame header there and back", "The header of a bucket is decoded and encoded",
             kTextRate, true, kSameMemcpy},
};

constexpr std::array kPeersCases{
    CaseText{"floor",
             "The model is copied once into the memory of each of N processes, all processes "
             "concurrently",
             "s", false, ""},
    CaseText{"verified copies",
             "The model is transferred from a trainer to the memory of N engines, and every byte "
             "is verified",
             "s", false, "floor"},
    CaseText{"staged", "The part of wsync's update during which engines serve", "s", false, ""},
    CaseText{"paused", "The part of wsync's update during which engines are paused", "s", false,
             ""},
};

constexpr std::array kOverheadCases{
    CaseText{"scraped and traced",
             "Processor time of an update during which all pages are scraped once a second and "
             "`wsync push --trace` writes a trace",
             "ms", false, "the same fleet's update while nobody asks"},
    CaseText{"spans kept, pages served",
             "Processor time of an update of a default fleet that no process scrapes or traces",
             "ms", false, "another fleet's update, which makes no spans and serves no pages"},
    CaseText{"making spans", "The spans of an update are created and stored once more", "ms", false,
             ""},
    CaseText{"push that traces", "Processor time of `wsync push --trace` itself", "ms", false,
             "`wsync push` without --trace"},
};

constexpr std::array kWholeCases{
    CaseText{"publish",
             "Time from the beginning of a publish until all engines serve it; the weights are "
             "copied into the version",
             "ms", false, "plain copy of the weights, and of the version to the engines"},
    CaseText{"in place",
             "The same of a version in which the weights are already, from the end of the version",
             "ms", false, "plain copy of the version to the engines"},
    CaseText{"unexplained",
             "Share of an update in which no span of its trace shows what was done, except that "
             "the coordinator waited",
             "%", false, ""},
};

constexpr std::array kDeltaCases{
    CaseText{"pause", "Pause of engines for an update in which this share of the weights changes",
             "ms", false, "pause for an update in which all weights change"},
    CaseText{"update",
             "Time from the beginning of a publish of such an update until all engines serve it",
             "ms", false, "the same for an update in which all weights change"},
    CaseText{"snapshot",
             "Time until the publish of such an update has returned and the weights may change",
             "ms", false, "the same for an update in which all weights change"},
    CaseText{
        "memory",
        "Versions and patches in the memory of trainer, sidecar and engines after such updates, "
        "beside the trainer's weights and the engines' own, by the size of the model",
        "models", false, ""},
    CaseText{"patch", "Size of the patch, as a share of the model", "%", false, ""},
    CaseText{"travelled", "Bytes that came to the sidecar, as a share of the model", "%", false,
             ""},
    CaseText{"changed", "Elements whose bits differ from those of the version before", "%", false,
             ""},
};

constexpr std::array kSuites{
    SuiteText{"baseline", "wsync bench baseline",
              "what are the highest rates of this machine's memory, links and files?",
              kBaselineCases},
    SuiteText{"sync", "wsync bench sync",
              "how long do engines pause for an update, and how close is the pause to the floor of "
              "this machine?",
              kSyncCases},
    SuiteText{"whole", "wsync bench whole",
              "how long does an update take, and how close is that to the floor of its copies?",
              kWholeCases},
    SuiteText{"delta", "wsync bench delta",
              "how much less does an update cost in which few weights change?", kDeltaCases},
    SuiteText{"pipeline", "wsync bench pipeline",
              "how long does the weight pipeline take, and does the simulation predict it?",
              kPipelineCases},
    SuiteText{
        "scale", "wsync bench scale",
        "how long do updates take on clusters of up to 10,000 GPUs, and which link limits them?",
        kScaleCases},
    SuiteText{
        "schedule", "wsync bench schedule",
        "how much time does a training step save by overlapping communication with computation?",
        kScheduleCases},
    SuiteText{"gpu", "wsync bench gpu",
              "how close do copies, digests and updates on GPUs come to plain calls of the driver?",
              kGpuCases},
    SuiteText{"control", "wsync bench control",
              "what do messages cost compared with bare sockets, and a coordinator's decisions for "
              "a growing number of replicas?",
              kControlCases},
    SuiteText{
        "transport", "wsync bench transport",
        "how close do memfd, TCP and TLS streams come to a plain mapping, copy or connection?",
        kTransportCases},
    SuiteText{"codecs", "wsync bench codecs",
              "what do digests, conversions and parsers of weights cost compared with a copy?",
              kCodecsCases},
    SuiteText{"peers", "wsync bench peers",
              "how long does the transfer of a model from a trainer's memory to engines take with "
              "wsync and with other tools?",
              kPeersCases},
    SuiteText{"overhead", "wsync bench overhead",
              "how much processor time do spans, metrics pages and traces add to an update?",
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
