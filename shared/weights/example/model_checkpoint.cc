#include "shared/weights/example/model_checkpoint.h"

#include "shared/weights/example/model_shape.h"

namespace wsync::cli {

Result<CheckpointModel> published_model(const std::string& name, std::uint64_t bytes) {
  const auto published = bench::find_model(name);
  if (!published) return fail(published.error().with_context("--model"));
  const auto shape = bench::scaled(*published, bytes);
  if (!shape) return fail(shape.error().with_context("--size"));
  return CheckpointModel{.tensors = bench::tensors_of(*shape),
                         .config = bench::config_json(*shape),
                         .layers = shape->layers + shape->mtp_layers,
                         .hidden = shape->hidden,
                         .experts = shape->experts};
}

}  // namespace wsync::cli
