#include "tiers/memory/numa.hpp"
#include "tiers/memory/host_pages.hpp"
#include "tiers/memory/numa_memory.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <array>
#include <fstream>
#include <string>

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;
using Nodes = std::vector<std::optional<std::uint32_t>>;

/// A machine with two nodes: an NVMe drive on each, one with a partition, and a mapping over the second one.
class NumaTopologyTest : public testing::Test {
 protected:
  void SetUp() override {
    write("devices/system/node/node0/cpulist", "0-3,8-11\n");
    write("devices/system/node/node1/cpulist", "4-7,12-15\n");
    write("devices/system/node/possible", "0-1\n");
    write("devices/pci0000:00/0000:01:00.0/numa_node", "0\n");
    write("devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n");
    write("devices/pci0000:80/0000:81:00.0/numa_node", "1\n");
    write("devices/pci0000:80/0000:81:00.0/nvme/nvme1/nvme1n1/size", "1\n");
    write("devices/virtual/block/dm-0/size", "1\n");
    write("devices/pci0000:00/0000:02:00.0/numa_node", "-1\n");
    write("devices/pci0000:00/0000:02:00.0/virtio0/block/vda/size", "1\n");
    fs::create_directories(root() / "devices/virtual/block/dm-0/slaves");
    fs::create_directory_symlink(root() / "devices/pci0000:80/0000:81:00.0/nvme/nvme1/nvme1n1",
                                 root() / "devices/virtual/block/dm-0/slaves/nvme1n1");
    link("259:1", "devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p1");
    link("259:2", "devices/pci0000:80/0000:81:00.0/nvme/nvme1/nvme1n1");
    link("253:0", "devices/virtual/block/dm-0");
    link("254:0", "devices/pci0000:00/0000:02:00.0/virtio0/block/vda");
    topology_ = NumaTopology::read(root());
  }
  fs::path root() { return directory_.path() / "sys"; }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root() / file).parent_path());
    std::ofstream(root() / file) << text;
  }
  void link(const std::string& number, const std::string& device) {
    fs::create_directories(root() / "dev/block");
    fs::create_directory_symlink(root() / device, root() / "dev/block" / number);
  }

  test::ScratchDirectory directory_;
  NumaTopology topology_;
};

TEST_F(NumaTopologyTest, FindsTheNodeOfADrivesController) {
  EXPECT_EQ(topology_.node_of_device(makedev(259, 1)), 0u);  // of a partition
  EXPECT_EQ(topology_.node_of_device(makedev(259, 2)), 1u);
  EXPECT_EQ(topology_.node_of_device(makedev(253, 0)), 1u);  // of a mapping
}

TEST_F(NumaTopologyTest, KnowsNoNodeOfADriveWithoutOneOrOfAMissingDrive) {
  EXPECT_EQ(topology_.node_of_device(makedev(254, 0)), std::nullopt);
  EXPECT_EQ(topology_.node_of_device(makedev(99, 0)), std::nullopt);
  EXPECT_EQ(topology_.node_of_directory("/proc"), std::nullopt);
}

TEST_F(NumaTopologyTest, FindsTheNodeThatHasAllOfTheCores) {
  EXPECT_EQ(topology_.node_count(), 2u);
  EXPECT_EQ(topology_.node(1), 1u);
  EXPECT_EQ(topology_.node_of_cpus(std::array{0u, 9u}), 0u);
  EXPECT_EQ(topology_.node_of_cpus(std::array{4u, 15u}), 1u);
  EXPECT_EQ(topology_.node_of_cpus(std::array{3u, 4u}), std::nullopt);
  EXPECT_EQ(topology_.node_of_cpus(std::array{16u}), std::nullopt);
  EXPECT_EQ(topology_.node_of_cpus({}), std::nullopt);
}

TEST(NumaTopology, IsOneUnknownNodeWhereNothingIsDescribed) {
  const test::ScratchDirectory empty;
  const NumaTopology topology = NumaTopology::read(empty.path());

  EXPECT_EQ(topology.node_count(), 1u);
  EXPECT_EQ(topology.node(0), std::nullopt);
  EXPECT_EQ(topology.node_of_cpus(std::array{0u}), std::nullopt);
}

TEST(NumaTopology, ReadsThisMachine) {
  EXPECT_GE(NumaTopology::read().node_count(), 1u);
  EXPECT_FALSE(allowed_cpus().empty());
}

TEST(PathsOfNodes, AreThoseOnThemAndThoseWithoutAKnownNode) {
  const Nodes nodes = {0u, 1u, std::nullopt, 1u, 2u};

  EXPECT_EQ(paths_of_nodes(nodes, std::array{0u}), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(paths_of_nodes(nodes, std::array{1u}), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_EQ(paths_of_nodes(nodes, std::array{0u, 2u}), (std::vector<std::size_t>{0, 2, 4}));
}

TEST(PathsOfNodes, AreAllWhereNoneIsOnThemOrTheyAreNotKnown) {
  EXPECT_EQ(paths_of_nodes(Nodes{0u, 1u}, std::array{2u}), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(paths_of_nodes(Nodes{0u, 1u}, {}), (std::vector<std::size_t>{0, 1}));
}

/// A page of 2 MiB that is not there yet, and of which the kernel knows where it will be.
class MemoryOfNodes : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = ::mmap(nullptr, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(bytes_, MAP_FAILED);
    if (const std::string refused = prefer_nodes(memory(), std::array{0u}); !refused.empty())
      GTEST_SKIP() << refused;  // a container may forbid the call
  }
  void TearDown() override { ::munmap(bytes_, 4 << 20); }
  [[nodiscard]] HostSpan memory() const { return {static_cast<std::byte*>(bytes_), 4_MiB}; }

 private:
  void* bytes_ = nullptr;
};

TEST_F(MemoryOfNodes, IsThereOnceItIsPopulated) {
  EXPECT_EQ(bytes_elsewhere(memory(), std::array{0u}, 2_MiB), std::nullopt);
  ASSERT_TRUE(populate(memory().data(), 4_MiB));
  EXPECT_EQ(bytes_elsewhere(memory(), std::array{0u}, 2_MiB), 0_B);
  EXPECT_EQ(bytes_elsewhere(memory(), std::array{1u}, 2_MiB), 4_MiB);
  EXPECT_EQ(bytes_elsewhere(memory().subspan({}, 3_MiB), std::array{1u, 7u}, 2_MiB), 3_MiB);
  EXPECT_EQ(bytes_elsewhere(memory(), std::array{1u, 0u}, 2_MiB), 0_B);
}

TEST_F(MemoryOfNodes, IsRefusedForANodeThatThereIsNot) {
  EXPECT_EQ(prefer_nodes(memory(), {}), "");
  EXPECT_EQ(prefer_nodes(memory(), std::array{4000u}), "there is no node 4000");
  EXPECT_NE(prefer_nodes(memory(), std::array{1023u}).find("mbind: "), std::string::npos);
}

TEST(NodesText, NamesThem) {
  EXPECT_EQ(nodes_text(std::array{3u}), "NUMA node 3");
  EXPECT_EQ(nodes_text(std::array{0u, 1u, 2u}), "NUMA nodes 0, 1 and 2");
}

}  // namespace
}  // namespace penstock::tiers
