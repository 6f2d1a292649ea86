// Why replicas are missing, in the words of a publish that waits for them.
#include "trainer_side/coordinator/missing_replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::coordinator {
namespace {

std::string missing(const std::vector<Member>& members) {
  std::vector<const Member*> pointers;
  for (const Member& member : members) pointers.push_back(&member);
  return missing_replicas(pointers);
}

Member sidecar(const std::string& name, std::vector<control::ReplicaReport> replicas) {
  Member member;
  member.name = name;
  member.report.replicas = std::move(replicas);
  return member;
}

TEST(MissingReplicas, NamesEachCause) {
  EXPECT_EQ(missing({}), "");
  EXPECT_EQ(
      missing({sidecar("s0", {{.replica = "whole", .world_size = 2, .ranks_attached = 2},
                              {.replica = "a",
                               .world_size = 1,
                               .reason = "rank 0 was refused: tensor w does not fit"}}),
               sidecar("s1", {})}),
      "replica 'a' has 0 of 1 ranks (rank 0 was refused: tensor w does not fit); no engine has "
      "attached to sidecar 's1' yet (an engine attaches when its memory is allocated)");
  EXPECT_EQ(missing({sidecar("s0", {{.replica = "whole", .world_size = 2, .ranks_attached = 2}})}),
            "");
}

TEST(MissingReplicas, CountsThoseThatAreNotNamed) {
  std::vector<Member> members(10);
  const std::string text = missing(members);
  EXPECT_THAT(text, testing::EndsWith("; and 2 more"));
}

}  // namespace
}  // namespace wsync::coordinator
