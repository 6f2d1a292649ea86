// `wsync make-checkpoint`: generates a synthetic checkpoint for experiments.
#include <CLI/CLI.hpp>
#include <utility>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/config/units.h"
#include "shared/weights/example/example_checkpoint.h"
#include "shared/weights/example/model_checkpoint.h"

namespace wsync::cli {
namespace {

Result<Outcome> make_checkpoint(DemoCheckpoint wanted, const std::string& size,
                                const std::string& model) {
  const Result<std::uint64_t> bytes = config::parse_size(size);
  if (!bytes) return fail(bytes.error().with_context("--size"));
  wanted.bytes = *bytes;
  if (!model.empty()) {
    wanted.model = WSYNC_TRY(published_model(model, *bytes));
  }
  const auto made = WSYNC_TRY(make_demo_checkpoint(wanted));
  return Outcome{
      .result = {{"directory", wanted.directory},
                 {"bytes", made.bytes},
                 {"tensors", made.tensors},
                 {"layers", made.layers},
                 {"hidden_size", made.hidden},
                 {"experts", made.experts}},
      .text = fmt::format("{}: {} in {} tensors, {} decoder layers, hidden size {}, {} experts",
                          wanted.directory, human_bytes(made.bytes), made.tensors, made.layers,
                          made.hidden, made.experts)};
}

}  // namespace

void add_make_checkpoint(CLI::App& app, Context& context) {
  CLI::App* command = add_command(
      app, context,
      {.name = "make-checkpoint",
       .description = "Generate a checkpoint for tests: in the Qwen3-MoE layout, or a smaller copy "
                      "of a published model's layout",
       .examples = {"wsync make-checkpoint /tmp/demo/step_1",
                    "wsync make-checkpoint /tmp/demo/step_2 --size 1GiB --seed 7 --step 2",
                    "wsync make-checkpoint /tmp/kimi --model Kimi-K2 --size 1GiB"}});
  struct Options {
    DemoCheckpoint wanted;
    std::string size = "256MiB";
    std::string model;
  };
  auto options = std::make_shared<Options>();
  command->add_option("DIR", options->wanted.directory, "Directory to create; it must not exist")
      ->required();
  command->add_option("--size", options->size, "Bytes of all tensors (default: 256MiB)");
  command->add_option("--seed", options->wanted.seed,
                      "Random seed; each seed gives other bytes (default: 1)");
  command->add_option("--step", options->wanted.step,
                      "Step; each step gives other bytes (default: 0)");
  command->add_option("--shards", options->wanted.shards, "Number of files (default: 4)");
  command
      ->add_option("--model", options->model,
                   "Use the tensors of this published model, reduced to fit --size: Qwen3-30B-A3B, "
                   "Qwen3-235B-A22B, GLM-4.5-Air, DeepSeek-V3.1 or Kimi-K2")
      ->type_name("NAME");
  command
      ->add_option("--wrong-shape", options->wanted.wrong_shape,
                   "Give this tensor another shape of the same size")
      ->type_name("TENSOR");
  command->callback([&context, options] {
    context.run("make-checkpoint",
                [&] { return make_checkpoint(options->wanted, options->size, options->model); });
  });
}

}  // namespace wsync::cli
