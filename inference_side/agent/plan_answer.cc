#include "inference_side/agent/plan_answer.h"

namespace wsync::agent {

control::SidecarPlan answer_plan(const control::Plan& plan, const EngineHub& hub,
                                 const staging::Store& store, const config::SidecarConfig& config) {
  control::SidecarPlan answer{
      .name = config.name, .replicas = hub.replica_count(), .versions_held = config.versions_held};
  if (config.devices.kind == config::DeviceKind::kSeparate) {
    answer.devices = config.devices.count;
    answer.buffer_bytes = config.devices.buffer_bytes;
  }
  ByteReader reader(plan.layout);
  auto manifest = Manifest::decode(reader);
  if (manifest && !reader.finish("layout"))
    manifest = fail(ErrorCode::kInvalidInput, "bytes left over");
  if (!manifest) {
    answer.failure = "the layout cannot be read: " + manifest.error().message();
    return answer;
  }
  answer.problems = hub.check_layout(*manifest);
  if (const auto fits = store.check_budget(plan.arena_bytes, config.versions_held); !fits)
    answer.problems.push_back(
        {.kind = control::ProblemKind::kMemory, .detail = fits.error().message()});
  return answer;
}

}  // namespace wsync::agent
