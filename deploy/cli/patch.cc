// `wsync patch`: makes, shows and applies patches of checkpoint directories.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "deploy/cli/commands.h"
#include "deploy/cli/patch_directories.h"
#include "deploy/cli/stop_signals.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/command/outcome.h"
#include "shared/config/units.h"
#include "shared/observe/trace/progress.h"
#include "shared/weights/patch/patch_file.h"

namespace wsync::cli {
namespace {

// As of `push`: when standard error is no terminal.
constexpr std::chrono::nanoseconds kPatchLinesEvery = std::chrono::seconds(5);

struct PatchOptions {
  std::string base;
  std::string target;
  std::string file;
  std::string output;
  std::string bucket = "64MiB";
  bool tensors = false;
  bool json = false;
};

// Draws the progress of a command, and ends it after a signal.
class PatchProgress {
 public:
  PatchProgress(std::string_view command, bool json)
      : line_(STDERR_FILENO, {.every = json ? std::chrono::nanoseconds(0) : kPatchLinesEvery,
                              .prefix = fmt::format("wsync {}: ", command)}) {}
  Result<> operator()(std::string_view what, std::uint64_t done, std::uint64_t total) {
    if (StopSignals::stopped())
      return fail(ErrorCode::kCancelled, "stopped by a signal; nothing was written");
    line_.update(what, done, total, now());
    return {};
  }

 private:
  StopSignals signals_;
  trace::ProgressLine line_;
};

std::string share_text(std::uint64_t bytes, std::uint64_t total) {
  if (total == 0) return "0 %";
  return fmt::format("{:.3g} %", 100.0 * static_cast<double>(bytes) / static_cast<double>(total));
}

nlohmann::json describe_index(const patch::Index& index, std::uint64_t file_bytes) {
  return {{"bytes", file_bytes},
          {"model_bytes", index.link().model_bytes},
          {"elements", index.elements()},
          {"blocks", index.blocks()},
          {"changed_tensors", index.tensors().size()},
          {"buckets", index.buckets().size()},
          {"layout_digest", index.link().layout.to_string()},
          {"base_digest", index.link().base.to_string()},
          {"target_digest", index.link().target.to_string()},
          {"equal", index.blocks() == 0}};
}

std::string index_text(const std::string& file, const patch::Index& index, std::uint64_t file_bytes,
                       std::size_t tensors) {
  std::string text = fmt::format("{}: {}, {} of {}\n", file, human_bytes(file_bytes),
                                 share_text(file_bytes, index.link().model_bytes),
                                 human_bytes(index.link().model_bytes));
  text += index.blocks() == 0
              ? std::string("  no blocks: base and target are equal\n")
              : fmt::format("  {} in {} of {} of {}, {}\n", counted(index.elements(), "element"),
                            counted(index.blocks(), "block"), index.tensors().size(),
                            counted(tensors, "tensor"), counted(index.buckets().size(), "bucket"));
  text += fmt::format("  base         {}\n  target       {}\n", index.link().base.to_string(),
                      index.link().target.to_string());
  return text;
}

// Before anything is read, which can take long.
Result<> check_parent(const std::string& output) {
  const std::filesystem::path path(output);
  const std::filesystem::path parent =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code error;
  if (std::filesystem::is_directory(parent, error)) return {};
  const bool exists = std::filesystem::exists(parent, error);
  return fail(ErrorCode::kInvalidInput,
              fmt::format("--output: {} cannot be written, because {} {}", output, parent.string(),
                          exists ? "is no directory"
                                 : "does not exist: create that directory, or give another path"));
}

// ---- make ----

Result<Outcome> make_patch(const PatchOptions& options) {
  const Result<std::uint64_t> bucket = config::parse_size(options.bucket);
  if (!bucket) return fail(bucket.error().with_context("--bucket"));
  if (*bucket < limits::kBucketBytesMin || *bucket > limits::kBucketBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("--bucket: expected {} to {}, found {}",
                            config::format_size(limits::kBucketBytesMin),
                            config::format_size(limits::kBucketBytesMax), options.bucket));
  WSYNC_TRY(check_parent(options.output));
  std::error_code error;
  if (std::filesystem::exists(options.output, error))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: exists already; remove it, or give another name", options.output));
  const auto base = WSYNC_TRY(CheckpointDirectory::open(options.base));
  const auto target = WSYNC_TRY(CheckpointDirectory::open(options.target));
  PatchProgress progress("patch make", options.json);
  const auto made = WSYNC_TRY(make_directory_patch(base, target, *bucket, std::ref(progress)));
  const auto bytes = WSYNC_TRY(patch::write_patch_file(options.output, base.manifest(), made.patch,
                                                       [] { return StopSignals::stopped(); }));
  const auto index = WSYNC_TRY(patch::Index::parse(made.patch.index));
  Outcome outcome{.result = describe_index(index, bytes),
                  .text = index_text(options.output, index, bytes, base.manifest().size())};
  outcome.result["patch"] = options.output;
  outcome.result["tensors"] = base.manifest().size();
  return outcome;
}

void add_patch_make(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "make",
       .description = "Write what changes from one checkpoint directory to another; the "
                      "patch is held in memory meanwhile",
       .examples = {"wsync patch make /models/step_1 /models/step_2 -o step_2.patch"}});
  auto options = std::make_shared<PatchOptions>();
  command->add_option("BASE", options->base, "Checkpoint directory that the patch is for")
      ->required();
  command->add_option("TARGET", options->target, "Checkpoint directory that it leads to")
      ->required();
  command->add_option("-o,--output", options->output, "File to write; it must not exist")
      ->type_name("FILE")
      ->required();
  command->add_option("--bucket", options->bucket,
                      "Maximum size of the parts that are checked by themselves, 1MiB or more "
                      "(default: 64MiB)");
  command->callback([&context, options] {
    options->json = context.options.json;
    context.run("patch make", [&] { return make_patch(*options); });
  });
}

// ---- inspect ----

struct TensorChanges {
  std::uint64_t blocks = 0;
  std::uint64_t dense_blocks = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;  // of positions and values
};

void list_changed_tensors(const patch::PatchFile& file, Outcome& outcome) {
  const Manifest& manifest = file.manifest();
  nlohmann::json list = nlohmann::json::array();
  for (const patch::TensorEntry& entry : file.patch().index().tensors()) {
    const TensorInfo& tensor = manifest.tensor(entry.tensor);
    TensorChanges changes;
    for (const patch::BlockView& block :
         file.patch().blocks(entry.tensor, 0, file.layout().block_count(entry.tensor))) {
      ++changes.blocks;
      changes.dense_blocks += block.dense ? 1 : 0;
      changes.elements += block.elements;
      changes.bytes += block.gaps.size() + block.values.size();
    }
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"layer", manifest.layer(entry.tensor)},
                    {"bytes", manifest.byte_size(entry.tensor)},
                    {"blocks", changes.blocks},
                    {"dense_blocks", changes.dense_blocks},
                    {"elements", changes.elements},
                    {"patch_bytes", changes.bytes}});
    outcome.text +=
        fmt::format("  {:>4}  {:>12} {:>10} {:>8}  {}\n", manifest.layer(entry.tensor),
                    counted(changes.elements, "element"), human_bytes(changes.bytes),
                    share_text(changes.bytes, manifest.byte_size(entry.tensor)), tensor.name);
  }
  outcome.result["tensor_list"] = std::move(list);
}

Result<Outcome> inspect_patch(const PatchOptions& options) {
  const auto file = WSYNC_TRY(patch::PatchFile::open(options.file));
  const patch::Index& index = file.patch().index();
  Outcome outcome{.result = describe_index(index, file.bytes()),
                  .text = index_text(options.file, index, file.bytes(), file.manifest().size())};
  std::set<std::uint32_t> layers;
  for (const patch::TensorEntry& entry : index.tensors())
    layers.insert(file.manifest().layer(entry.tensor));
  outcome.text +=
      fmt::format("  layout       {}\n  changes      {} of {}\n", index.link().layout.to_string(),
                  layers.size(), counted(file.manifest().layer_count(), "layer"));
  outcome.result["patch"] = options.file;
  outcome.result["tensors"] = file.manifest().size();
  outcome.result["layers"] = file.manifest().layer_count();
  outcome.result["changed_layers"] = layers.size();
  if (options.tensors) list_changed_tensors(file, outcome);
  return outcome;
}

void add_patch_inspect(CLI::App& parent, Context& context) {
  CLI::App* command =
      add_command(parent, context,
                  {.name = "inspect",
                   .description = "Check every byte of a patch, and show what it changes",
                   .examples = {"wsync patch inspect step_2.patch",
                                "wsync patch inspect step_2.patch --tensors --json"}});
  auto options = std::make_shared<PatchOptions>();
  command->add_option("PATCH", options->file, "File that `wsync patch make` has written")
      ->required();
  command->add_flag("--tensors", options->tensors,
                    "List every tensor that changes, in layer order");
  command->callback([&context, options] {
    context.run("patch inspect", [&] { return inspect_patch(*options); });
  });
}

// ---- apply ----

Result<Outcome> apply_patch(const PatchOptions& options) {
  WSYNC_TRY(check_parent(options.output));
  const auto base = WSYNC_TRY(CheckpointDirectory::open(options.base));
  const auto file = WSYNC_TRY(patch::PatchFile::open(options.file));
  const patch::Index& index = file.patch().index();
  {
    PatchProgress progress("patch apply", options.json);
    WSYNC_TRY(apply_directory_patch(file, base, options.output, std::ref(progress)));
  }
  return Outcome{.result = {{"directory", options.output},
                            {"bytes", index.link().model_bytes},
                            {"tensors", file.manifest().size()},
                            {"changed_tensors", index.tensors().size()},
                            {"elements", index.elements()},
                            {"base_digest", index.link().base.to_string()},
                            {"content_digest", index.link().target.to_string()}},
                 .text = fmt::format("{}: {} in {}, {} of them changed\n  content      {}\n",
                                     options.output, human_bytes(index.link().model_bytes),
                                     counted(file.manifest().size(), "tensor"),
                                     index.tensors().size(), index.link().target.to_string())};
}

void add_patch_apply(CLI::App& parent, Context& context) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "apply",
       .description =
           "Write the checkpoint directory that a patch leads to, with all tensors in one "
           "file; base and result are proven, byte by byte, before it appears",
       .examples = {"wsync patch apply /models/step_1 step_2.patch -o /models/step_2"}});
  auto options = std::make_shared<PatchOptions>();
  command->add_option("BASE", options->base, "Checkpoint directory that the patch is for")
      ->required();
  command->add_option("PATCH", options->file, "File that `wsync patch make` has written")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "Directory to create; the small files beside the weights of BASE are copied too")
      ->type_name("DIR")
      ->required();
  command->callback([&context, options] {
    options->json = context.options.json;
    context.run("patch apply", [&] { return apply_patch(*options); });
  });
}

}  // namespace

void add_patch(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "patch", "Patches: only what changed from one checkpoint directory to another");
  command->require_subcommand(1);
  add_patch_make(*command, context);
  add_patch_inspect(*command, context);
  add_patch_apply(*command, context);
}

}  // namespace wsync::cli
