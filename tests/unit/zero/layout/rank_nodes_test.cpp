#include "zero/layout/rank_nodes.hpp"

#include "kit/cluster.hpp"
#include "tiers/memory/numa.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using Nodes = std::vector<std::size_t>;

TEST(RankNodes, AreOneForEachOfManyRanksAndSeveralForEachOfFew) {
  const auto of = [](std::uint32_t ranks, std::size_t nodes) {
    std::vector<Nodes> all;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) all.push_back(spread_over_nodes(rank, ranks, nodes));
    return all;
  };
  EXPECT_EQ(of(4, 2), (std::vector<Nodes>{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(of(3, 2), (std::vector<Nodes>{{0}, {0}, {1}}));
  EXPECT_EQ(of(1, 2), (std::vector<Nodes>{{0, 1}}));
  EXPECT_EQ(of(2, 5), (std::vector<Nodes>{{0, 1}, {2, 3, 4}}));
  EXPECT_EQ(of(2, 1), (std::vector<Nodes>{{0}, {0}}));
  EXPECT_EQ(spread_over_nodes(9, 4, 4), Nodes{3});  // a rank that there is not
}

TEST(RankNodes, GiveARankItsPartOfTheSmallestBudget) {
  Config config;
  EXPECT_EQ(host_budget_of_rank(config, 4), 0_B);
  config.penstock.host_budget = 8_GiB;
  EXPECT_EQ(host_budget_of_rank(config, 4), 2_GiB);

  config.penstock.host_budget = {};
  config.penstock.node_budgets = {8_GiB, 6_GiB};
  config.penstock.rank_nodes = {0, 0, 1, 1};
  EXPECT_EQ(host_budget_of_rank(config, 4), 3_GiB);
  config.penstock.rank_nodes = {0, 0, 0, 1};
  EXPECT_EQ(host_budget_of_rank(config, 4), 8_GiB / 3);
  EXPECT_EQ(host_budget_of_rank(config, 8), 8_GiB / 3);  // plan_memory() refuses that later
  config.penstock.rank_nodes = {1, 1, 1, 1};
  EXPECT_EQ(host_budget_of_rank(config, 4), 6_GiB / 4);
}

/// A machine whose nodes have none of the cores of this process.
class MachineOfNodes : public testing::Test {
 protected:
  [[nodiscard]] tiers::NumaTopology topology(std::uint32_t nodes) const {
    for (std::uint32_t node = 0; node < nodes; ++node) {
      const auto directory = machine_.path() / "devices/system/node" / ("node" + std::to_string(node));
      std::filesystem::create_directories(directory);
      std::ofstream(directory / "cpulist") << 1000 + 4 * node << "-" << 1003 + 4 * node << "\n";
    }
    return tiers::NumaTopology::read(machine_.path());
  }
  [[nodiscard]] static Config config() {
    Config config = test::RunOptions::default_config();
    config.offload_param =
        config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"a", "b"}};
    config.penstock.host_budget = {};
    config.penstock.path_nodes = {0, 1};
    return config;
  }

 private:
  penstock::test::ScratchDirectory machine_;
};

TEST_F(MachineOfNodes, GivesItsRanksMemoryAndPathsOfTheirNodes) {
  const Config config = MachineOfNodes::config();
  const auto machine = topology(2);
  const auto options = [&](std::uint32_t ranks, std::uint32_t rank) {
    return plan_memory(config, test::small_model(), ranks, ranks)->runtime_options(config, rank, machine);
  };
  EXPECT_EQ(options(2, 1).memory_nodes, std::vector<std::uint32_t>{1});
  EXPECT_EQ(options(2, 1).paths.size(), 1u);
  EXPECT_EQ(options(1, 0).memory_nodes, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(options(1, 0).paths.size(), 2u);  // else a drive would have nothing to do
}

TEST_F(MachineOfNodes, LeavesTheChoiceToTheKernelWhereItHasOneNode) {
  Config config = MachineOfNodes::config();
  const MemoryPlan plan = plan_memory(config, test::small_model(), 1, 1).value();
  EXPECT_TRUE(plan.runtime_options(config, 0, topology(1)).memory_nodes.empty());
  EXPECT_TRUE(plan.runtime_options(config, 0, tiers::NumaTopology::read("/no/sysfs")).memory_nodes.empty());
  config.penstock.rank_nodes = {3};
  EXPECT_EQ(plan.runtime_options(config, 0, topology(1)).memory_nodes, std::vector<std::uint32_t>{3});
}

TEST(NodeBudgets, AreTheBudgetOfThePlan) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = {};
  config.penstock.node_budgets = {96_MiB, 64_MiB};
  config.penstock.rank_nodes = {0, 1};
  EXPECT_EQ(plan_memory(config, test::small_model(), 2, 2)->host_budget, 64_MiB);

  config.penstock.node_budgets = {64_MiB, 8_KiB};
  config.penstock.rank_nodes = {0, 0, 1, 1};
  const auto refused = plan_memory(config, test::small_model(), 4, 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  const std::string message = refused.error().message();
  EXPECT_NE(message.find("penstock.node_budgets"), std::string::npos) << message;
  EXPECT_NE(message.find("got 4.0 KiB"), std::string::npos) << message;
}

TEST(NodeBudgets, AreRefusedBesideAHostBudgetAndForFewerNodesThanAreNamed) {
  Config config = test::RunOptions::default_config();
  config.penstock.host_budget = 64_MiB;
  config.penstock.node_budgets = {64_MiB};
  config.penstock.rank_nodes = {0, 0};
  const auto refusal = [&] { return config.validate().error().message(); };
  EXPECT_NE(refusal().find("penstock.node_budgets"), std::string::npos) << refusal();
  config.penstock.host_budget = {};
  EXPECT_TRUE(config.validate());
  config.penstock.rank_nodes = {0, 1};
  EXPECT_NE(refusal().find("number 1"), std::string::npos) << refusal();
  config.penstock.rank_nodes.clear();
  EXPECT_NE(refusal().find("needs rank_nodes"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace penstock::zero
