#include "zero/comm/nccl/nccl_library.hpp"

#include "kernels/host_compute.hpp"
#include "kit/memory_job.hpp"
#include "zero/comm/nccl/nccl_group.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

void expect_unsupported(const Error& error, const std::vector<std::string>& words) {
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  for (const std::string& word : words) {
    EXPECT_NE(error.message().find(word), std::string::npos) << word << " in " << error.message();
  }
}

TEST(NcclLibrary, SaysWhichFileCannotBeLoadedAndWhatToDo) {
  const auto absent = NcclLibrary::load("/nowhere/libnccl.so.2");

  ASSERT_FALSE(absent);
  expect_unsupported(absent.error(), {"/nowhere/libnccl.so.2", "No such file", "install NCCL 2.26.2 or newer",
                                      "PENSTOCK_NCCL"});
}

TEST(NcclLibrary, NamesTheFunctionThatALibraryLacks) {
  const auto other = NcclLibrary::load("libc.so.6");

  ASSERT_FALSE(other);
  expect_unsupported(other.error(), {"libc.so.6", "ncclGetVersion"});
}

TEST(NcclLibrary, RefusesOneThatIsTooOld) {
  const auto old = NcclLibrary::load(PENSTOCK_OLD_NCCL);

  ASSERT_FALSE(old);
  expect_unsupported(old.error(), {PENSTOCK_OLD_NCCL, "wanted 2.26.2, got 2.26.1"});
}

TEST(NcclLibrary, LoadsOncePerProcessTheFileThatTheEnvironmentNames) {
  ASSERT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_OLD_NCCL, /*overwrite=*/1), 0);
  const auto named = NcclLibrary::instance();
  ASSERT_EQ(setenv("PENSTOCK_NCCL", "/nowhere/libnccl.so.2", /*overwrite=*/1), 0);
  const auto again = NcclLibrary::instance();

  ASSERT_FALSE(named);
  ASSERT_FALSE(again);
  EXPECT_NE(named.error().message().find(PENSTOCK_OLD_NCCL), std::string::npos);
  EXPECT_EQ(again.error().message(), named.error().message());
}

TEST(NcclLibrary, TellsThePeersOfARankThatHasNone) {
  ASSERT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_OLD_NCCL, /*overwrite=*/1), 0);
  const auto job = std::make_shared<penstock::test::MemoryJob>(2);
  tiers::HostDevice device({.memory = 1_MiB});
  const auto compute = kernels::make_host_compute();

  const auto joined = nccl_membership(job->control(1), {}).join(device, *compute, {});

  ASSERT_FALSE(joined);
  expect_unsupported(joined.error(), {PENSTOCK_OLD_NCCL, "NCCL is too old"});
  const auto told = job->control(0)->obstacle();
  EXPECT_EQ(told->code(), ErrorCode::peer_failed);
  EXPECT_NE(told->message().find("NCCL is too old"), std::string::npos) << told->message();
}

TEST(NcclLibrary, FindsEveryFunctionInTheOneOfThisMachine) {
  void* const installed = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (installed == nullptr) GTEST_SKIP() << dlerror();

  const auto nccl = NcclLibrary::load("libnccl.so.2");

  ASSERT_TRUE(nccl) << nccl.error().message();
  EXPECT_EQ(reinterpret_cast<void*>(nccl->ncclAllGather), dlsym(installed, "ncclAllGather"));
  EXPECT_STREQ(nccl->ncclGetErrorString(ncclSuccess), "no error");
}

}  // namespace
}  // namespace penstock::zero::test
