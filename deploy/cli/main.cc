#include "deploy/cli/app.h"

int main(int argc, char** argv) { return wsync::cli::run_app(argc, argv); }
