@echo off
rem Starts the program on Windows. webui-user.bat sets COMMANDLINE_ARGS and calls this file, as users of the
rem reference UI know it; PYTHON names another Python than the one that the py launcher finds.
cd /d "%~dp0"
if defined PYTHON (
    "%PYTHON%" launch.py %*
) else (
    py -3 launch.py %*
)
if errorlevel 1 pause
