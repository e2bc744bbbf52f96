#include "c_runtime.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/penstock.h>

#include <gtest/gtest.h>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace penstock {
namespace {

using test::expect;
using test::made;
using test::make_runtime;
using test::Runtime;
using test::ScratchDirectory;
using test::succeed;

TEST(CRuntime, ReportsWhatIsKnownOfADrive) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path().string(), file = directory + "/report.json";
  const penstock_path path{.size = sizeof(path),
                           .directory = directory.c_str(),
                           .capacity = 1 << 20,
                           .limit = 3e9,
                           .endurance = 1000};
  const penstock_runtime_options options{
      .size = sizeof(options), .host_budget = 64 << 10, .paths = &path, .path_count = 1};
  penstock_runtime* made = nullptr;
  succeed(penstock_runtime_create(&options, &made));
  const penstock_report_drive drive{
      .size = sizeof(drive), .directory = directory.c_str(), .limit = 4e9, .endurance = 2000};
  penstock_report_options as_json{
      .size = sizeof(as_json), .format = PENSTOCK_REPORT_JSON, .elapsed_seconds = 5};
  const auto contents = [&] {
    succeed(penstock_runtime_save_report(made, &as_json, file.c_str()));
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };

  const std::string of_path = contents();
  as_json.drives = &drive;
  as_json.drive_count = 1;
  const std::string of_call = contents();

  EXPECT_NE(of_path.find("\"endurance\": 1000"), std::string::npos) << of_path;
  EXPECT_NE(of_path.find("\"limit\": 3e+09"), std::string::npos) << of_path;
  EXPECT_NE(of_path.find("\"elapsed\": 5"), std::string::npos) << of_path;
  EXPECT_NE(of_call.find("\"endurance\": 2000"), std::string::npos) << of_call;
  EXPECT_NE(of_call.find("\"limit\": 4e+09"), std::string::npos) << of_call;
  expect(penstock_runtime_save_report(made, &as_json, (directory + "/none/report").c_str()),
         PENSTOCK_NOT_FOUND, "none/report");
  as_json.format = 3;
  expect(penstock_runtime_save_report(made, &as_json, file.c_str()), PENSTOCK_INVALID_ARGUMENT, "format");
  penstock_runtime_free(std::exchange(made, nullptr));
  for (const double wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    penstock_path bad = path;
    bad.limit = wrong;
    penstock_runtime_options refused = options;
    refused.paths = &bad;
    expect(penstock_runtime_create(&refused, &made), PENSTOCK_INVALID_ARGUMENT, "options.paths.limit");
  }
}

TEST(CRuntime, HasAReport) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  const std::string directory = scratch.path().string();
  const auto text = [&](penstock_report_format format, double seconds) {
    const penstock_report_drive drive{
        .size = sizeof(drive), .directory = directory.c_str(), .limit = 1e9, .endurance = 77};
    const penstock_report_options options{.size = sizeof(options),
                                          .format = format,
                                          .rank = 5,
                                          .elapsed_seconds = seconds,
                                          .drives = &drive,
                                          .drive_count = 1};
    penstock_lines* lines = nullptr;
    succeed(penstock_runtime_report_text(runtime.get(), &options, &lines));
    std::string all;
    for (std::size_t i = 0; i < penstock_lines_count(lines); ++i)
      all += std::string(penstock_lines_get(lines, i)) + '\n';
    penstock_lines_free(lines);
    return all;
  };
  EXPECT_TRUE(text(PENSTOCK_REPORT_TEXT, 2).starts_with("rank 5, 2.00 s, callers waited"));
  EXPECT_NE(text(PENSTOCK_REPORT_TEXT, 0).find(directory), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_JSON, 2).find("\"elapsed\": 2"), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_JSON, 2).find("\"endurance\": 77"), std::string::npos);
  EXPECT_NE(text(PENSTOCK_REPORT_PROMETHEUS, 2).find("penstock_elapsed_seconds{rank=\"5\"} 2\n"),
            std::string::npos);
}

TEST(CRuntime, RefusesAReportOfDrivesThatCannotBe) {
  const ScratchDirectory scratch;
  const Runtime runtime = make_runtime(scratch);
  penstock_lines* lines = nullptr;
  const auto refused = [&](const penstock_report_drive& drive, const char* what) {
    const penstock_report_options options{.size = sizeof(options), .drives = &drive, .drive_count = 1};
    expect(penstock_runtime_report_text(runtime.get(), &options, &lines), PENSTOCK_INVALID_ARGUMENT, what);
  };
  refused({.size = sizeof(penstock_report_drive)}, "options.drives.directory");
  refused({.size = 1, .directory = "a"}, "options.drives.size");
  for (const double limit : {-1.0, std::nan(""), static_cast<double>(INFINITY)})
    refused({.size = sizeof(penstock_report_drive), .directory = "a", .limit = limit},
            "options.drives.limit");
  EXPECT_EQ(lines, nullptr);
}

}  // namespace
}  // namespace penstock
