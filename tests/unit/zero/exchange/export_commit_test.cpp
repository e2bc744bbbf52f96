#include "zero/exchange/export_commit.hpp"

#include "committed_run.hpp"
#include "kernels/host_kernels.hpp"
#include "kit/golden.hpp"
#include "zero/exchange/safetensors_header.hpp"
#include "zero/exchange/states_description.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <stdexcept>

namespace penstock::zero::exchange {
namespace {

using penstock::test::Safetensors;
using test::CommittedRun;
using test::run_on_disk;

/// The tensors of all files of an export.
class ExportedTensors {
 public:
  explicit ExportedTensors(const std::filesystem::path& directory) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() == ".safetensors") files_.emplace_back(entry.path());
    }
  }
  [[nodiscard]] const Safetensors& file_of(const std::string& name) const {
    const auto found =
        std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file.contains(name); });
    if (found == files_.end()) throw std::out_of_range(name);
    return *found;
  }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const Safetensors& file = file_of(name);
    const std::string& dtype = file.at(name).dtype;
    if (dtype == "F32") return file.elements<float>(name);
    const auto narrow = file.elements<std::uint16_t>(name);
    std::vector<float> wide(narrow.size());
    kernels::cast_elements(
        {reinterpret_cast<const std::byte*>(narrow.data()), dtype == "BF16" ? DType::bf16 : DType::fp16},
        {reinterpret_cast<std::byte*>(wide.data()), DType::fp32}, wide.size());
    return wide;
  }

 private:
  std::vector<Safetensors> files_;
};

std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

/// Every format and dtype of parameters, among others with masters that no 16-bit parameter holds.
class ExportFormats : public testing::TestWithParam<test::RunFormat> {};

TEST_P(ExportFormats, WeightsAreTheRunsParametersAndStatesItsStates) {
  auto options = run_on_disk();
  GetParam().set(options.config);
  const CommittedRun run(options);

  const auto report = export_commit(run.manifests(), {.directory = run.out(), .states = true});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->dtype, GetParam().parameters);
  const ExportedTensors exported(run.out());
  for (const auto& [id, values] : run.parameters()) {
    const std::string name = full_name(run.model(), id);
    EXPECT_EQ(exported.floats(name), values) << name;
    EXPECT_EQ(exported.file_of(name).at(name).dtype, GetParam().parameters == DType::bf16   ? "BF16"
                                                     : GetParam().parameters == DType::fp16 ? "F16"
                                                                                            : "F32");
  }
  for (const auto& [key, values] : run.states().states()) {
    const std::string name = state_name(key.second, full_name(run.model(), key.first));
    EXPECT_EQ(exported.floats(name), values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExportFormats,
                         testing::Values(test::RunFormat{cpu_adam::StateFormat::fp32, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::fp32, DType::fp16},
                                         test::RunFormat{cpu_adam::StateFormat::fp32, DType::fp32},
                                         test::RunFormat{cpu_adam::StateFormat::split, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::split_bf16, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::split_q8, DType::bf16},
                                         test::RunFormat{cpu_adam::StateFormat::moments, DType::fp16},
                                         test::RunFormat{cpu_adam::StateFormat::moments_bf16, DType::bf16}),
                         [](const auto& one) { return one.param.name(); });

TEST(ExportCommit, WritesOneFileOrShardsWithAnIndex) {
  const CommittedRun run(run_on_disk());
  const auto whole = export_commit(run.manifests(), {.directory = run.out()});
  ASSERT_TRUE(whole) << whole.error().message();
  EXPECT_EQ(names_in(run.out()), std::set<std::string>{"model.safetensors"});
  const auto sharded =
      export_commit(run.manifests(), {.directory = run.out() / "sharded", .shard_max = ByteCount(30'000)});

  ASSERT_TRUE(sharded) << sharded.error().message();
  EXPECT_EQ(sharded->tensors, 6u) << "a shared parameter is written once";
  EXPECT_EQ(sharded->bytes, whole->bytes);
  EXPECT_EQ(sharded->files,
            (std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  const ExportedTensors exported(run.out() / "sharded");
  for (const auto& [id, values] : run.parameters())
    EXPECT_EQ(exported.floats(full_name(run.model(), id)), values);
}

TEST(ExportCommit, ShapesAreThoseOfTheLayoutOrTheCount) {
  auto options = run_on_disk();
  options.model.units[1].parameters[2].shape = {9, 10, 100};
  const CommittedRun run(options);

  ASSERT_TRUE(export_commit(run.manifests(), {.directory = run.out()}));

  const Safetensors file(run.out() / "model.safetensors");
  EXPECT_EQ(file.at("block.out").shape, (std::vector<std::uint64_t>{9, 10, 100}));
  EXPECT_EQ(file.at("block.weight").shape, std::vector<std::uint64_t>{40'001});
}

TEST(ExportCommit, TheMetadataOfStatesDescribesTheRun) {
  auto options = run_on_disk();
  options.model.groups.push_back(
      {.learning_rate_factor = 0.1, .betas = {{0.7, 0.999}}, .epsilon = 1e-7, .weight_decay = 0.3});
  options.model.units[1].parameters[0].group = 2;
  options.model.units[1].parameters[2].shape = {90, 100};
  const CommittedRun run(options);
  ASSERT_TRUE(export_commit(run.manifests(), {.directory = run.out(), .states = true}));

  const auto header = SafetensorsHeader::read(run.out() / "states.safetensors");
  ASSERT_TRUE(header) << header.error().message();
  const auto description = StatesDescription::from_metadata(header->metadata, "states.safetensors");

  ASSERT_TRUE(description) << description.error().message();
  EXPECT_EQ(description->completed_steps, 3u);
  EXPECT_EQ(description->optimizer, cpu_adam::Optimizer::adam);
  EXPECT_EQ(description->loss_scaler, run.manifests()[0].loss_scaler);
  EXPECT_EQ(description->layout.groups, options.model.groups);
  ASSERT_EQ(description->layout.units.size(), options.model.units.size());
  for (std::size_t u = 0; u < options.model.units.size(); ++u) {
    const UnitLayout &read = description->layout.units[u], &unit = options.model.units[u];
    EXPECT_EQ(read.name, unit.name);
    EXPECT_EQ(read.shared, unit.shared);
    ASSERT_EQ(read.parameters.size(), unit.parameters.size());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      EXPECT_EQ(read.parameters[i].name, unit.parameters[i].name);
      EXPECT_EQ(read.parameters[i].count, unit.parameters[i].count);
      EXPECT_EQ(read.parameters[i].group, unit.parameters[i].group);
      EXPECT_EQ(read.parameters[i].shape, unit.parameters[i].shape);
    }
  }
}

// The layout's file knows units by their names.
TEST(ExportCommit, RefusesStatesThatAnImportCouldNotRead) {
  auto options = run_on_disk();
  options.model.units[1].name = options.model.units[2].name;
  const CommittedRun run(options);

  const auto refused = export_commit(run.manifests(), {.directory = run.out(), .states = true});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported) << refused.error().message();
  EXPECT_FALSE(std::filesystem::exists(run.out()));
  EXPECT_TRUE(export_commit(run.manifests(), {.directory = run.out()}));
}

TEST(ExportCommit, RefusesANumberThatTheTypeDoesNotHoldByName) {
  auto options = run_on_disk();
  options.config.dtype = options.config.grad_accum_dtype = DType::fp32;
  options.initial = [](ParameterId id, std::uint64_t element) {
    return id == ParameterId{1, 0} && element == 77 ? 65520.0f : 0.5f;
  };
  options.steps = 0;
  const CommittedRun run(options);

  const auto refused = export_commit(run.manifests(), {.directory = run.out(), .dtype = DType::fp16});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::non_finite);
  EXPECT_NE(refused.error().message().find("block.weight, element 77"), std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(names_in(run.out()).empty());
  EXPECT_TRUE(export_commit(run.manifests(), {.directory = run.out(), .dtype = DType::bf16}));
}

TEST(ExportCommit, RefusesADirectoryThatIsNotEmpty) {
  const CommittedRun run(run_on_disk());
  std::filesystem::create_directory(run.out());
  std::ofstream(run.out() / "mine") << "text";

  const auto refused = export_commit(run.manifests(), {.directory = run.out()});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::already_exists);
  EXPECT_NE(refused.error().message().find(run.out().string()), std::string::npos);
  EXPECT_EQ(names_in(run.out()), std::set<std::string>{"mine"});
}

TEST(ExportCommit, NamesTheFileWhoseBytesAreDamaged) {
  const CommittedRun run(run_on_disk());
  const Manifest& damaged = run.manifests()[1];
  const CommittedTensor& tensor = *std::find_if(
      damaged.tensors.begin(), damaged.tensors.end(),
      [](const CommittedTensor& one) { return one.key.role == tiers::Purpose::optimizer_tile; });
  std::fstream file(damaged.files[tensor.file], std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(tensor.offset.value()));
  file.put('\x55').put('\x55').put('\x55').put('\x55');
  file.close();

  const auto refused = export_commit(run.manifests(), {.directory = run.out(), .states = true});

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::corrupted);
  EXPECT_NE(refused.error().message().find(damaged.files[tensor.file]), std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(names_in(run.out()).empty());
}

TEST(ExportCommit, AFaultOfTheFileSystemLeavesNoFile) {
  using tiers::FaultFileSystem;
  using tiers::FileSystemFault;
  const CommittedRun run(run_on_disk());
  const ExportOptions options{.directory = run.out(), .shard_max = ByteCount(30'000), .states = true};
  std::uint64_t faults = 0;

  for (const auto operation :
       {FileSystemFault::Operation::list, FileSystemFault::Operation::create_directory,
        FileSystemFault::Operation::create, FileSystemFault::Operation::write,
        FileSystemFault::Operation::sync, FileSystemFault::Operation::rename,
        FileSystemFault::Operation::sync_directory, FileSystemFault::Operation::read}) {
    for (std::uint64_t occurrence = 0;; ++occurrence) {
      FaultFileSystem files(tiers::real_file_system(),
                            {FileSystemFault::fail(operation, occurrence, ENOSPC)});
      auto with_fault = options;
      with_fault.files = &files;
      std::filesystem::remove_all(run.out());
      const auto report = export_commit(run.manifests(), with_fault);
      if (report) break;
      EXPECT_EQ(report.error().code(), ErrorCode::no_space) << report.error().message();
      EXPECT_TRUE(!std::filesystem::exists(run.out()) || names_in(run.out()).empty());
      ++faults;
    }
  }

  EXPECT_GT(faults, 60u);
}

}  // namespace
}  // namespace penstock::zero::exchange
