// A program that is not linked with MPI asks for it.
#include "zero/comm/mpi/mpi_library.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace penstock::zero {
namespace {

bool has_loaded_mpi() {
  std::ifstream maps("/proc/self/maps");
  return std::string(std::istreambuf_iterator<char>(maps), {}).find("libmpi") != std::string::npos;
}

Result<const MpiModule*> load(const std::string& file) {
  return load_mpi_module([&](const char* name) {
    EXPECT_STREQ(name, "PENSTOCK_MPI");
    return std::optional(file);
  });
}

/// The message of the error, which is `unsupported`.
std::string refusal(const std::string& file) {
  const auto module = load(file);
  EXPECT_FALSE(module);
  if (module) return "";
  EXPECT_EQ(module.error().code(), ErrorCode::unsupported);
  return module.error().message();
}

#if PENSTOCK_HAS_MPI

TEST(MpiLibrary, IsNotLoadedBeforeItIsAskedFor) {
  EXPECT_FALSE(has_loaded_mpi());
  ASSERT_TRUE(load(PENSTOCK_MPI_FILE));
  EXPECT_TRUE(has_loaded_mpi());
}

TEST(MpiLibrary, IsFoundBesideTheProgram) {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path() / MpiModule::file;
  std::filesystem::remove(here);
  const std::string unset = refusal("");
  EXPECT_NE(unset.find("libpenstock_mpi.so: cannot open shared object file"), std::string::npos) << unset;
  std::filesystem::create_symlink(PENSTOCK_MPI_FILE, here);

  const auto module = load_mpi_module([](const char*) { return std::nullopt; });

  std::filesystem::remove(here);
  EXPECT_TRUE(module) << module.error().message();
}

TEST(MpiLibrary, SaysWhatIsMissing) {
  EXPECT_EQ(
      refusal("/nowhere/libpenstock_mpi.so"),
      "MPI cannot be used: /nowhere/libpenstock_mpi.so, got /nowhere/libpenstock_mpi.so: cannot open "
      "shared object file: No such file or directory [load_mpi_module]\n  try     set PENSTOCK_MPI to the "
      "path of libpenstock_mpi.so, which is installed with this library, install MPI (Debian: openmpi-bin), "
      "or "
      "use another transport");
}

TEST(MpiLibrary, RefusesAnotherLibrary) {
  const std::string other = refusal("libdl.so.2");
  EXPECT_NE(other.find("undefined symbol: penstock_mpi_module"), std::string::npos) << other;
  const std::string old = refusal(PENSTOCK_OTHER_BUILD_FILE);
  EXPECT_NE(old.find("belongs to another build"), std::string::npos) << old;
  EXPECT_NE(old.find(std::string("wanted ") + MpiModule::this_build + ", got Penstock 0.0.0"),
            std::string::npos)
      << old;
}

#else

TEST(MpiLibrary, IsNotPartOfThisBuild) {
  EXPECT_EQ(refusal("/nowhere/libpenstock_mpi.so"),
            "this build has no MPI [load_mpi_module]\n  try     install libopenmpi-dev and build with "
            "PENSTOCK_MPI=ON (a CMake option), or use another transport");
  EXPECT_FALSE(has_loaded_mpi());
}

#endif

}  // namespace
}  // namespace penstock::zero
