#include <penstock/tiers/memory/memory_limits.hpp>

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <string>

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;

/// A machine with 64 GiB, of which 48 GiB are available.
class MemoryLimits : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   50331648 kB\n");
  }
  void write(const std::string& file, const std::string& text) {
    const fs::path path = directory_.path() / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  /// The process is in `group` of version 2, of which `top` is mounted.
  void be_in_v2(const std::string& group, const std::string& top = "/") {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 " + top +
                                     " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  }
  void be_in_v1(const std::string& group, const std::string& top = "/") {
    write("proc/self/cgroup",
          "11:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:" + group + "\n1:name=systemd:/elsewhere\n");
    write("proc/self/mountinfo",
          "31 22 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 " + top +
              " /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory,hugetlb\n");
  }
  void limit_v2(const std::string& group, const std::string& max, const std::string& current) {
    write("sys/fs/cgroup" + group + "/memory.max", max + "\n");
    write("sys/fs/cgroup" + group + "/memory.current", current + "\n");
  }
  void limit_v1(const std::string& group, const std::string& limit, const std::string& usage) {
    write("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit + "\n");
    write("sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", usage + "\n");
  }
  MemoryLimit limit() const { return memory_limit(directory_.path()); }
  void expect_machine() const {
    EXPECT_EQ(limit().available, 48_GiB);
    EXPECT_EQ(limit().allowed, 64_GiB);
    EXPECT_EQ(limit().file, "/proc/meminfo");
  }

  test::ScratchDirectory directory_;
};

TEST_F(MemoryLimits, AreTheMachinesWithoutControlGroups) {
  expect_machine();
}

TEST_F(MemoryLimits, AreFreeMemoryAndPageCacheWithoutMemAvailable) {
  write("proc/meminfo",
        "MemTotal: 67108864 kB\nMemFree: 8388608 kB\nCached: 6291456 kB\nShmem: 2097152 kB\n");
  EXPECT_EQ(limit().available, 12_GiB);
  EXPECT_EQ(limit().allowed, 64_GiB);

  write("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 8388608 kB\nShmem: 2097152 kB\n");
  EXPECT_EQ(limit().available, 8_GiB);
}

TEST_F(MemoryLimits, AreTheCommitLimitWhereTheKernelEnforcesIt) {
  const std::string info =
      "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nCommitLimit: 33554432 kB\nCommitted_AS: 25165824 "
      "kB\n";
  for (const char* policy : {"0\n", "1\n", "rubbish", ""}) {
    write("proc/meminfo", info);
    write("proc/sys/vm/overcommit_memory", policy);
    expect_machine();
  }
  write("proc/sys/vm/overcommit_memory", "2\n");

  EXPECT_EQ(limit().available, 8_GiB);
  EXPECT_EQ(limit().allowed, 32_GiB);
  EXPECT_NE(limit().file.find("vm.overcommit_memory"), std::string::npos);
}

TEST_F(MemoryLimits, AreThoseOfTheProcesssOwnGroup) {
  be_in_v2("/train/job 7");
  limit_v2("/train/job 7", "1073741824", "268435456");

  EXPECT_EQ(limit().available, 768_MiB);
  EXPECT_EQ(limit().allowed, 1_GiB);
  EXPECT_EQ(limit().used(), 256_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/train/job 7/memory.max");
}

TEST_F(MemoryLimits, AreTheSmallestOfAllGroupsAboveIt) {
  be_in_v2("/a/b/c");
  limit_v2("/a/b/c", "max", "5");
  limit_v2("/a/b", "2147483648", "1073741824");
  limit_v2("/a", "1610612736", "1073741824");

  EXPECT_EQ(limit().available, 512_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/a/memory.max");
}

TEST_F(MemoryLimits, AreTheLowerOneOfMaxAndHighInEachGroup) {
  be_in_v2("/a/b");
  limit_v2("/a/b", "max", "268435456");
  write("sys/fs/cgroup/a/b/memory.high", "1073741824\n");
  EXPECT_EQ(limit().available, 768_MiB);
  EXPECT_EQ(limit().allowed, 1_GiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/a/b/memory.high");

  limit_v2("/a/b", "2147483648", "268435456");
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/a/b/memory.high");

  limit_v2("/a/b", "536870912", "268435456");
  EXPECT_EQ(limit().available, 256_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/a/b/memory.max");

  write("sys/fs/cgroup/a/b/memory.high", "max\n");
  limit_v2("/a", "1073741824", "536870912");
  write("sys/fs/cgroup/a/memory.high", "671088640\n");
  EXPECT_EQ(limit().available, 128_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/a/memory.high");
}

TEST_F(MemoryLimits, AreThoseOfTheMountWhereAContainerSeesNothingAbove) {
  for (const std::string group :
       {"/", "/docker/1234", "/../../elsewhere", "/docker/12345", "//docker/1234"}) {
    be_in_v2(group, group == "/" ? "/" : "/docker/1234");
    limit_v2("", "1073741824", "0");

    EXPECT_EQ(limit().available, 1_GiB) << group;
    EXPECT_EQ(limit().file, "/sys/fs/cgroup/memory.max") << group;
  }
}

TEST_F(MemoryLimits, AreReadInVersion1) {
  be_in_v1("/docker/1234/child", "/docker/1234");
  limit_v1("/child", "9223372036854771712", "4096");
  limit_v1("", "1073741824", "268435456");

  EXPECT_EQ(limit().available, 768_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

TEST_F(MemoryLimits, AreTheSmallestOfBothVersionsInAHybrid) {
  be_in_v1("/a");
  limit_v1("/a", "1073741824", "0");
  std::ofstream(directory_.path() / "proc/self/cgroup", std::ios::app) << "0::/b\n";
  std::ofstream(directory_.path() / "proc/self/mountinfo", std::ios::app)
      << "40 22 0:30 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(limit().available, 1_GiB);

  write("sys/fs/cgroup/uni fied/b/memory.max", "536870912\n");
  EXPECT_EQ(limit().available, 512_MiB);
  EXPECT_EQ(limit().file, "/sys/fs/cgroup/uni fied/b/memory.max");
}

TEST_F(MemoryLimits, DoNotCountPageCacheThatCanBeDropped) {
  be_in_v2("/a");
  limit_v2("/a", "1073741824", "1073741824");
  write("sys/fs/cgroup/a/memory.stat",
        "anon 1\nfile 7\ninactive_anon 1073741824\ninactive_file 268435456\nactive_file 134217728\n");
  EXPECT_EQ(limit().available, 384_MiB);

  be_in_v1("/a");
  limit_v1("/a", "1073741824", "1073741824");
  write("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1073741824\ntotal_inactive_file 268435456\n");
  EXPECT_EQ(limit().available, 256_MiB);
}

TEST_F(MemoryLimits, LeaveNothingInAGroupThatUsesMoreThanItsLimit) {
  be_in_v2("/a");
  limit_v2("/a", "1000", "2000");

  EXPECT_EQ(limit().available, 0_B);
  EXPECT_EQ(limit().used(), 1000_B);
}

TEST_F(MemoryLimits, AreNotSetByRubbish) {
  be_in_v2("/a");
  for (const std::string text : {"", "max", "rubbish", "-1", "99999999999999999999999999", "\xff\xfe", " "}) {
    limit_v2("/a", text, "rubbish");
    expect_machine();
  }
  limit_v2("/a", "1073741824", "99999999999999999999999999");
  write("sys/fs/cgroup/a/memory.stat",
        "inactive_file\ninactive_file x\n\ninactive_file 18446744073709551615\n");
  EXPECT_EQ(limit().available, 1_GiB);
}

TEST_F(MemoryLimits, SurviveRubbishInProc) {
  const std::string rubbish[] = {"",
                                 "\n\n",
                                 ":::\n",
                                 "0::\n",
                                 "x",
                                 "4:memory\n",
                                 "30 22 0:26 / - cgroup2\n",
                                 " - cgroup2 \n",
                                 "1 2 3 / \\0 - cgroup2 x\n",
                                 "0:://\n"};
  for (const std::string& cgroup : rubbish) {
    for (const std::string& mounts : rubbish) {
      write("proc/self/cgroup", cgroup);
      write("proc/self/mountinfo", mounts);
      EXPECT_EQ(limit().available, 48_GiB);
    }
  }
  write("proc/meminfo", "MemAvailable: rubbish\nMemTotal: 99999999999999999 kB\n");
  EXPECT_GT(limit().available, 1'000'000_GiB);
  write("proc/meminfo", "");
  EXPECT_GT(limit().available, 1'000'000_GiB);
}

TEST_F(MemoryLimits, AreReadOnThisMachine) {
  EXPECT_GT(memory_limit().available, 1_MiB);
  EXPECT_LE(memory_limit().available, memory_limit().allowed);
}

TEST_F(MemoryLimits, NameTheFileAndWhatIsMissing) {
  be_in_v2("/a");
  limit_v2("/a", "1073741824", "268435456");

  EXPECT_TRUE(check_memory("test", 768_MiB, limit()));
  const auto refused = check_memory("test", 800_MiB, limit());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::no_space);
  EXPECT_EQ(
      refused.error().message(),
      "host memory does not suffice, wanted 800.0 MiB (838860800 B), got 768.0 MiB available [test]\n"
      "  short   by 32.0 MiB\n"
      "  limit   /sys/fs/cgroup/a/memory.max: 1.0 GiB, of which 256.0 MiB are in use\n"
      "  try     set a lower host budget (penstock.host_budget), offload more to nvme, raise that limit, or "
      "stop what else uses memory");
}

}  // namespace
}  // namespace penstock::tiers
