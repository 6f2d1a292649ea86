#include "trainer_side/coordinator/page/status_page.h"

#include "shared/observe/status/status_report.h"

namespace wsync::page {
namespace {

using nlohmann::json;

json stages_json(const std::vector<RoundStage>& stages, TimePoint began) {
  json list = json::array();
  for (const RoundStage& stage : stages)
    list.push_back({{"name", stage.name},
                    {"begin_ns", (stage.begin - began).count()},
                    {"end_ns", (stage.end - began).count()}});
  return list;
}

json round_json(const RoundRecord& round, TimePoint at) {
  json sidecars = json::array();
  for (const RoundLane& lane : round.lanes)
    sidecars.push_back({{"name", lane.sidecar}, {"stages", stages_json(lane.stages, round.began)}});
  return {{"version", round.version.to_string()},
          {"rollback", round.rollback},
          {"result", round.result.empty() ? json(nullptr) : json(round.result)},
          {"reason", round.reason},
          {"began_ago_ns", (at - round.began).count()},
          {"duration_ns", (round.ended - round.began).count()},
          {"phases", stages_json(round.phases, round.began)},
          {"sidecars", std::move(sidecars)},
          {"sidecars_left_out", round.lanes_left_out},
          {"replicas", status::outcomes_json(round.outcomes)},
          {"replicas_left_out", round.outcomes_left_out}};
}

}  // namespace

json status_json(const PageFacts& facts) {
  json all = status::to_json(facts.status);
  all["ready"] = facts.ready;
  all["not_ready"] = facts.not_ready;
  json rounds = json::array();
  for (const auto& round : facts.rounds) rounds.push_back(round_json(*round, facts.at));
  all["rounds"] = std::move(rounds);
  return all;
}

}  // namespace wsync::page
