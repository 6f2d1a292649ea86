#include "bench/scale/shared_links.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shared/base/check.h"

namespace wsync::bench {
namespace {

// Ends whose relative difference is smaller are simultaneous, because it comes from rounding.
constexpr double kSameTime = 1e-9;

std::size_t at(LinkId link) { return static_cast<std::size_t>(link); }

}  // namespace

LinkId SharedLinks::add(std::string name, double capacity) {
  WSYNC_CHECK(capacity > 0, "a link without capacity");
  links_.push_back({.name = std::move(name), .capacity = capacity});
  return LinkId{static_cast<std::uint32_t>(links_.size() - 1)};
}

FlowId SharedLinks::start(Flow flow) {
  Running made{
      .id = FlowId{next_++}, .flow = {}, .fixed_left_s = flow.fixed_s, .work_left = flow.work};
  made.alone = std::numeric_limits<double>::infinity();
  for (const Demand& demand : flow.demands) {
    WSYNC_CHECK(demand.share > 0, "a demand of nothing");
    made.alone = std::min(made.alone, links_.at(at(demand.link)).capacity / demand.share);
  }
  WSYNC_CHECK(made.work_left <= 0 || !flow.demands.empty(), "work without a link");
  made.flow = std::move(flow);
  running_.push_back(std::move(made));
  return running_.back().id;
}

// Progressive filling: the tightest link determines the factor of its flows, which are then
// removed.
void SharedLinks::set_speeds() {
  std::vector<double> left(links_.size());
  for (std::size_t l = 0; l < links_.size(); ++l) left[l] = links_[l].capacity;
  std::vector<Running*> open;
  for (Running& r : running_) {
    r.speed = 0;
    if (r.fixed_left_s <= 0 && r.work_left > 0) open.push_back(&r);
  }
  while (!open.empty()) {
    std::vector<double> asked(links_.size(), 0);
    for (const Running* r : open)
      for (const Demand& d : r->flow.demands) asked[at(d.link)] += r->alone * d.share;
    double factor = 1;
    std::size_t tightest = links_.size();
    for (std::size_t l = 0; l < links_.size(); ++l)
      if (asked[l] > 0 && left[l] < factor * asked[l]) {
        factor = std::max(0.0, left[l] / asked[l]);
        tightest = l;
      }
    const auto is_set = [&](Running* r) {
      const bool here =
          tightest == links_.size() || std::ranges::any_of(r->flow.demands, [&](const Demand& d) {
            return at(d.link) == tightest;
          });
      if (!here) return false;
      r->speed = r->alone * factor;
      for (const Demand& d : r->flow.demands) left[at(d.link)] -= r->speed * d.share;
      return true;
    };
    std::erase_if(open, is_set);
  }
}

std::vector<FlowId> SharedLinks::advance() {
  if (running_.empty()) return {};
  const auto left_s = [](const Running& r) {
    if (r.fixed_left_s > 0) return r.fixed_left_s;
    return r.work_left <= 0 ? 0.0 : r.work_left / r.speed;
  };
  for (;;) {
    set_speeds();
    double step = std::numeric_limits<double>::infinity();
    for (const Running& r : running_) step = std::min(step, left_s(r));
    WSYNC_CHECK(step < std::numeric_limits<double>::infinity(), "a flow that never ends");
    std::vector<FlowId> ended;
    now_s_ += step;
    for (Running& r : running_) {
      const bool done = left_s(r) <= step * (1 + kSameTime);
      if (r.fixed_left_s > 0) {
        r.fixed_left_s = done ? 0 : r.fixed_left_s - step;
        if (done && r.work_left <= 0) ended.push_back(r.id);
        continue;
      }
      for (const Demand& d : r.flow.demands)
        links_[at(d.link)].used_s += step * r.speed * d.share / links_[at(d.link)].capacity;
      r.work_left = done ? 0 : r.work_left - step * r.speed;
      if (done) ended.push_back(r.id);
    }
    if (ended.empty()) continue;  // only fixed times have ended
    std::erase_if(running_,
                  [&](const Running& r) { return std::ranges::find(ended, r.id) != ended.end(); });
    return ended;
  }
}

std::vector<LinkUse> SharedLinks::use() const {
  std::vector<LinkUse> made;
  for (const Link& link : links_) made.push_back({.name = link.name, .seconds = link.used_s});
  return made;
}

}  // namespace wsync::bench
