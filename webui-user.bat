@echo off
rem Your own start: set what you want, then webui.bat is called. "py -3 launch.py --help" lists the flags.
set PYTHON=
set COMMANDLINE_ARGS=

call "%~dp0webui.bat" %*
