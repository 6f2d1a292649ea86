// `wsync inspect`: shows the contents of a checkpoint directory and any problems in it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/command/outcome.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/content_digest.h"

namespace wsync::cli {
namespace {

struct InspectOptions {
  std::string directory;
  bool tensors = false;
  bool digest = false;
  bool lenient = false;
};

struct Sum {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

Outcome broken(const CheckpointReport& report) {
  Outcome outcome;
  for (const std::string& problem : report.problems)
    outcome.complaint += "wsync inspect: " + problem + "\n";
  for (const std::string& warning : report.warnings)
    outcome.complaint += "wsync inspect: warning: " + warning + "\n";
  outcome.result = {{"problems", report.problems}, {"warnings", report.warnings}};
  outcome.exit_code = kExitBadInput;
  return outcome;
}

void list_tensors(const CheckpointDirectory& directory, Outcome& outcome) {
  const Manifest& manifest = directory.manifest();
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const TensorInfo& tensor = manifest.tensor(i);
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"layer", manifest.layer(i)},
                    {"bytes", manifest.byte_size(i)},
                    {"file", directory.file_of(i)}});
    outcome.text += fmt::format("  {:>4}  {:<8} {:<18} {:>10}  {}\n", manifest.layer(i),
                                dtype_name(tensor.dtype), shape_text(tensor.shape),
                                human_bytes(manifest.byte_size(i)), tensor.name);
  }
  outcome.result["tensor_list"] = std::move(list);
}

// Computes the content digest, which identifies a version with these bytes.
Result<Digest> content_digest(const CheckpointDirectory& directory) {
  const Manifest& manifest = directory.manifest();
  ContentDigester digester(manifest);
  std::vector<std::byte> block;
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
    const std::uint64_t bytes = manifest.byte_size(tensor);
    for (std::uint64_t at = 0; at < bytes; at += limits::kLeafBytes) {
      block.resize(std::min(limits::kLeafBytes, bytes - at));
      WSYNC_TRY(directory.read(tensor, at, block));
      WSYNC_TRY(digester.add(tensor, at, block));
    }
  }
  const auto digests = WSYNC_TRY(digester.finish());
  return digests.root;
}

Result<Outcome> inspect(const InspectOptions& options) {
  CheckpointReport report;
  const auto rules = options.lenient ? SafetensorsRules::kLenient : SafetensorsRules::kStrict;
  const auto directory = CheckpointDirectory::inspect(options.directory, {.rules = rules}, report);
  if (!directory) return broken(report);

  const Manifest& manifest = directory->manifest();
  std::map<std::string_view, Sum> by_dtype;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    Sum& sum = by_dtype[dtype_name(manifest.tensor(i).dtype)];
    ++sum.tensors;
    sum.bytes += manifest.byte_size(i);
  }
  Outcome outcome;
  outcome.text = fmt::format(
      "{}: {} in {}, {} with embeddings and head, {}\n", options.directory,
      human_bytes(manifest.total_bytes()), counted(manifest.size(), "tensor"),
      counted(manifest.layer_count(), "layer"), counted(directory->file_count(), "file"));
  nlohmann::json dtypes = nlohmann::json::object();
  for (const auto& [name, sum] : by_dtype) {
    dtypes[std::string(name)] = {{"tensors", sum.tensors}, {"bytes", sum.bytes}};
    outcome.text += fmt::format("  {:<12} {:>10} in {}\n", name, human_bytes(sum.bytes),
                                counted(sum.tensors, "tensor"));
  }
  outcome.text += fmt::format("  layout       {}\n", manifest.layout_digest().to_string());
  for (const std::string& warning : report.warnings)
    outcome.text += fmt::format("  warning: {}\n", warning);
  outcome.result = {{"directory", options.directory},
                    {"bytes", manifest.total_bytes()},
                    {"tensors", manifest.size()},
                    {"layers", manifest.layer_count()},
                    {"files", directory->file_count()},
                    {"dtypes", std::move(dtypes)},
                    {"layout_digest", manifest.layout_digest().to_string()},
                    {"problems", nlohmann::json::array()},
                    {"warnings", report.warnings}};
  if (options.digest) {
    const auto digest = WSYNC_TRY(content_digest(*directory));
    outcome.text += fmt::format("  content      {}\n", digest.to_string());
    outcome.result["content_digest"] = digest.to_string();
  }
  if (options.tensors) list_tensors(*directory, outcome);
  return outcome;
}

}  // namespace

void add_inspect(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "inspect",
       .description = "Show tensors, dtypes, layers and problems of a checkpoint directory",
       .examples = {"wsync inspect /models/qwen3", "wsync inspect --tensors --json .",
                    "wsync inspect --digest /models/step_200"}});
  auto options = std::make_shared<InspectOptions>();
  command->add_option("DIR", options->directory, "Hugging Face checkpoint directory")->required();
  command->add_flag("--tensors", options->tensors, "List every tensor, in layer order");
  command->add_flag(
      "--digest", options->digest,
      "Read every byte and print the digest that a version of this directory would have");
  command->add_flag(
      "--lenient", options->lenient,
      "Accept all files that the reference reader accepts, not only those that the format allows");
  command->callback(
      [&context, options] { context.run("inspect", [&] { return inspect(*options); }); });
}

}  // namespace wsync::cli
