#include "bench/schedule/samples.h"

namespace wsync::bench {
namespace {

std::int64_t number(TimePoint time) { return static_cast<std::int64_t>(time); }
TimePoint time_of(const nlohmann::json& list, std::size_t i) {
  return TimePoint{list.at(i).get<std::int64_t>()};
}

}  // namespace

nlohmann::json to_json(const StepSample& sample) {
  nlohmann::json operations = nlohmann::json::array();
  for (const training::Measured& one : sample.operations) {
    operations.push_back(number(one.begin));
    operations.push_back(number(one.end));
  }
  nlohmann::json exchanges = nlohmann::json::array();
  for (const Exchange& one : sample.exchanges) {
    exchanges.push_back(number(one.time.begin));
    exchanges.push_back(number(one.time.end));
    exchanges.push_back(one.processor.count());
    exchanges.push_back(one.bytes);
  }
  return {{"begin", number(sample.begin)},
          {"end", number(sample.end)},
          {"operations", std::move(operations)},
          {"exchanges", std::move(exchanges)}};
}

StepSample step_sample_of(const nlohmann::json& object) {
  StepSample sample{.begin = TimePoint{object.at("begin").get<std::int64_t>()},
                    .end = TimePoint{object.at("end").get<std::int64_t>()},
                    .operations = {},
                    .exchanges = {}};
  const nlohmann::json& operations = object.at("operations");
  for (std::size_t i = 0; i < operations.size(); i += 2)
    sample.operations.push_back({time_of(operations, i), time_of(operations, i + 1)});
  const nlohmann::json& exchanges = object.at("exchanges");
  for (std::size_t i = 0; i < exchanges.size(); i += 4)
    sample.exchanges.push_back(
        {.time = {time_of(exchanges, i), time_of(exchanges, i + 1)},
         .processor = std::chrono::nanoseconds(exchanges.at(i + 2).get<std::int64_t>()),
         .bytes = exchanges.at(i + 3).get<std::uint64_t>()});
  return sample;
}

}  // namespace wsync::bench
